# For CMake, as Horovod's build calls it (labkit/cli/setup.py names this file): the empty headers of README.md come first,
# and there is no debugging information, which takes a third of the compiler's time. Horovod raises -O2 to -O3.
include_directories(BEFORE "${CMAKE_CURRENT_LIST_DIR}/include")
# The header is one that a file of Horovod's uses without including it: GCC 14 no longer brings it with others.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG -include stdexcept" CACHE STRING "")
# GCC 14 refuses what Horovod's copy of flatbuffers assigns to: https://github.com/google/flatbuffers/pull/7227
set(span "${CMAKE_SOURCE_DIR}/third_party/flatbuffers/include/flatbuffers/stl_emulation.h")
if(EXISTS "${span}")  # CMake's own trials of the compiler read this file too
  file(READ "${span}" text)
  string(REPLACE "const size_type count_;" "size_type count_;" text "${text}")
  file(WRITE "${span}" "${text}")
endif()
# Two files in place of 26, which include the same headers: half of the compiler's time.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
# Nothing here is for a GPU: where there is a CUDA compiler, it would be looked for and tried.
set(CMAKE_CUDA_COMPILER NOTFOUND)
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)
