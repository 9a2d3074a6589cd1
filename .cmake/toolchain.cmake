# Language, warnings, optimisation, sanitizers, ccache, linker.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

# lld takes a quarter of the time of GNU ld.
find_program(LLD ld.lld)
if(LLD)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
endif()

# For tests/gpu/pack. Unlike DT_RUNPATH, the older DT_RPATH is also searched for the libraries that the libraries in
# ../lib need.
if(TRAINYARD_RELOCATABLE)
  set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
  add_link_options(LINKER:--disable-new-dtags)
endif()

# GCC moves the cold part of a function into a function of its own, which may be empty. An empty one has the address of
# the function after it, whose entry in the exception table lld then drops: an exception that passes through that
# function ends the process. tests/programs checks for this.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-reorder-blocks-and-partition>)

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
# Declarations say which mutex guards a variable (ABSL_GUARDED_BY); Clang alone checks it.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Werror=thread-safety>)

# GCC looks for garbage each time its memory has grown from 128 MiB on; that takes a tenth of the time of a large file and
# gives back little. 1 GiB is more than most files take.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1048576>")

# With a sanitizer an optimising compiler takes more time than its faster tests give back.
if(TRAINYARD_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O0 -g1")
endif()

if(TRAINYARD_SANITIZE STREQUAL "address")
  # Null pointers are AddressSanitizer's to find; vptr and object-size cost the most and find the least.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null,vptr,object-size
                      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # Functions of C libraries that are looked up by name have no type information that Clang could check.
  add_compile_options($<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  add_link_options(-fsanitize=address,undefined)
elseif(TRAINYARD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  # Linked into every program, to tell ThreadSanitizer what the packaged libraries hide from it.
  add_library(trainyard_tsan OBJECT tests/tsan/absl_mutex.cc tests/tsan/suppressions.cc)
  link_libraries($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:trainyard_tsan>>)
elseif(NOT TRAINYARD_SANITIZE STREQUAL "")
  message(FATAL_ERROR "TRAINYARD_SANITIZE is '${TRAINYARD_SANITIZE}': expected address or thread")
endif()

if(TRAINYARD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TRAINYARD_FUZZ needs clang: cmake --preset fuzz")
  endif()
  add_compile_options(-O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr
                      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
