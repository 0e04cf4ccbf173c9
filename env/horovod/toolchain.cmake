# For CMake in Horovod's build (labkit/cli/setup.py passes this file): the empty headers (see README.md) come first, and
# there is no debugging information, which takes a third of the compile time. Horovod raises -O2 to -O3.
include_directories(BEFORE "${CMAKE_CURRENT_LIST_DIR}/include")
# A Horovod file uses this header without including it; since GCC 14, other headers no longer include it.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG -include stdexcept" CACHE STRING "")
# GCC 14 rejects an assignment in Horovod's copy of flatbuffers: https://github.com/google/flatbuffers/pull/7227
set(span "${CMAKE_SOURCE_DIR}/third_party/flatbuffers/include/flatbuffers/stl_emulation.h")
if(EXISTS "${span}")  # CMake's compiler checks read this file too
  file(READ "${span}" text)
  string(REPLACE "const size_type count_;" "size_type count_;" text "${text}")
  file(WRITE "${span}" "${text}")
endif()
# Two files instead of 26, which include the same headers: this halves the compile time.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
# No GPU code: don't look for a CUDA compiler, or try one.
set(CMAKE_CUDA_COMPILER NOTFOUND)
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)
# Where the compiler has the linker gold, use it: ld takes six seconds longer to read TensorFlow's library of 800 MB.
execute_process(COMMAND sh -c "\${CXX:-g++} -fuse-ld=gold -Wl,--version" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
if(failed EQUAL 0)
  add_link_options(-fuse-ld=gold)
endif()
