# For CMake, as Horovod's build calls it (`./lab` names this file): the empty headers of README.md come first, and there is
# no debugging information, which takes a third of the compiler's time. Horovod raises -O2 to -O3.
include_directories(BEFORE "${CMAKE_CURRENT_LIST_DIR}/include")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "")
# Nothing here is for a GPU: where there is a CUDA compiler, it would be looked for and tried.
set(CMAKE_CUDA_COMPILER NOTFOUND)
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)
# What is compiled is kept until all of it is: README.md.
if(DEFINED ENV{LABKIT_OBJECTS})
  get_filename_component(kit "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_CURRENT_LIST_DIR}/keep.sh" "${CMAKE_SOURCE_DIR}" "${kit}")
endif()
