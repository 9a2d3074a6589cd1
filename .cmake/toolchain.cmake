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

# A quarter of the linking time of GNU's.
find_program(LLD ld.lld)
if(LLD)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
endif()

# For tests/gpu/pack. The older DT_RPATH also counts for what the libraries there need themselves.
if(TRAINYARD_RELOCATABLE)
  set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
  add_link_options(LINKER:--disable-new-dtags)
endif()

# GCC makes a function of its own of each cold part, some of them empty. An empty one has the address of the next
# function, whose entry in the table for exceptions lld then drops: an exception that passes that one ends the process.
# tests/programs looks for it.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-reorder-blocks-and-partition>)

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
# What a mutex guards is said where it is declared; Clang alone reads it.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Werror=thread-safety>)

# With a sanitizer an optimising compiler takes more time than its faster tests give back.
if(TRAINYARD_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O0 -g1")
endif()

if(TRAINYARD_SANITIZE STREQUAL "address")
  # Null pointers are AddressSanitizer's to find; vptr and object-size cost the most and find the least.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null,vptr,object-size
                      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # Functions of C libraries found by name have no types that Clang could compare.
  add_compile_options($<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  add_link_options(-fsanitize=address,undefined)
elseif(TRAINYARD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  # Into every program: what the packaged libraries hide from ThreadSanitizer.
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
