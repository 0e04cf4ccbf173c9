# For CMake, as Horovod's build calls it (labkit/cli/setup.py names this file): the empty headers of README.md come first,
# and there is no debugging information, which takes a third of the compiler's time. Horovod raises -O2 to -O3.
include_directories(BEFORE "${CMAKE_CURRENT_LIST_DIR}/include")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "")
# Two files in place of 26, which include the same headers: half of the compiler's time.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
# Nothing here is for a GPU: where there is a CUDA compiler, it would be looked for and tried.
set(CMAKE_CUDA_COMPILER NOTFOUND)
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)
