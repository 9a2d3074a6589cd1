# One library per folder, and the table of who may include whom, checked when CMake configures.
# A convention that nobody checks decays.

# trainyard_library(NAME SOURCES files... DEPS targets...)
function(trainyard_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# trainyard_program(NAME SOURCES files... DEPS targets...): lands in bin/.
function(trainyard_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

# trainyard_test(NAME SOURCES files... DEPS targets... [LABEL label] [TIMEOUT seconds] [THREADS]):
# GoogleTest cases, each a test of its own in ctest. LABEL is unit unless given. THREADS marks what is also
# worth running under ThreadSanitizer: its label gets the suffix _threads. The targets unit_tests and
# thread_tests build what the sanitizer runs need.
add_custom_target(unit_tests)
add_custom_target(thread_tests)
function(trainyard_test name)
  cmake_parse_arguments(ARG "THREADS" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT TRAINYARD_SANITIZE)  # optimising tests more would cost more time than it saves
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(ARG_LABEL STREQUAL "unit")
    add_dependencies(unit_tests ${name})
  endif()
  if(ARG_THREADS)
    add_dependencies(thread_tests ${name})
    string(APPEND ARG_LABEL "_threads")
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}." NO_PRETTY_VALUES PROPERTIES LABELS ${ARG_LABEL}
                       TIMEOUT ${ARG_TIMEOUT} DISCOVERY_TIMEOUT 60)
endfunction()

# Folder | prefixes of our include paths that its files may name, separated by spaces. The longest folder
# that matches a file decides; a folder may always include itself.
set(TRAINYARD_LAYERS
  "kernels|"
  "kernels/ops|kernels/operand.h kernels/buffer.h"
  "kernels/scratch|kernels/ops/"
  "storage/base|"
  "storage/records|storage/base/"
  "storage/objects|storage/base/"
  "storage|storage/"
  "proto|storage/base/ trainyard/v1/"
  "proto/tls|storage/base/"
  "executor/data|storage/base/ trainyard/v1/spec.pb.h executor/plan/spec/facts.h kernels/random.h"
  "executor/data/files|storage/base/"
  "executor/data/dataset|executor/plan/spec/facts.h"
  "executor/data/tokenizer|executor/data/files/ storage/base/ trainyard/v1/spec.pb.h"
  "executor/data/text|executor/data/dataset/ executor/data/files/ executor/data/tokenizer/ storage/base/ trainyard/v1/spec.pb.h executor/plan/spec/facts.h kernels/random.h"
  "executor/data/clicks|executor/data/dataset/ executor/data/files/ storage/base/ trainyard/v1/spec.pb.h executor/plan/spec/facts.h kernels/random.h"
  "executor/data/images|executor/data/dataset/ executor/data/files/ storage/base/ trainyard/v1/spec.pb.h executor/plan/spec/facts.h kernels/random.h"
  "executor/plan|storage/base/ trainyard/v1/spec.pb.h kernels/step_state.h"
  "executor/plan/spec|storage/base/ trainyard/v1/spec.pb.h"
  "executor/plan/graph|executor/plan/spec/ kernels/ops/ storage/base/ trainyard/v1/spec.pb.h"
  "executor/plan/ops|executor/plan/graph/ kernels/ops/ kernels/scratch/ storage/base/"
  "executor/plan/families|executor/plan/graph/ executor/plan/spec/ storage/base/ trainyard/v1/spec.pb.h"
  "executor/plan/memory|executor/plan/graph/ executor/plan/ops/ storage/base/"
  "executor/plan/cost|executor/plan/graph/ executor/plan/ops/ executor/plan/spec/ kernels/scratch/ storage/base/ trainyard/v1/spec.pb.h"
  "executor/plan/passes|executor/plan/graph/ executor/plan/memory/ executor/plan/ops/ executor/plan/spec/ kernels/scratch/ storage/base/ trainyard/v1/spec.pb.h"
  "executor/weights|executor/plan/ executor/data/ storage/base/ storage/objects/ trainyard/v1/spec.pb.h"
  "executor/engine|executor/plan/ executor/data/ executor/weights/ kernels/ storage/base/ storage/objects/ trainyard/v1/spec.pb.h"
  "executor/engine/parallel|kernels/device.h storage/base/"
  "executor/facts|executor/plan/ executor/data/ executor/weights/ storage/base/ trainyard/v1/spec.pb.h trainyard/v1/facts.pb.h"
  "executor/run|storage/base/ trainyard/v1/spec.pb.h trainyard/v1/run.pb.h"
  "executor/worker|executor/engine/ executor/plan/ executor/data/ executor/facts/ executor/run/ kernels/device.h kernels/libraries.h storage/base/ storage/objects/ proto/text/ trainyard/v1/spec.pb.h trainyard/v1/run.pb.h trainyard/v1/resources.pb.h trainyard/v1/facts.pb.h"
  "executor/agent|executor/run/ storage/base/ proto/tls/ trainyard/v1/"
  "server|storage/ proto/tls/ trainyard/v1/ executor/plan/ executor/facts/"
  "server/sizing|storage/base/ trainyard/v1/spec.pb.h trainyard/sizing/ executor/plan/ executor/data/ executor/facts/"
  "clients|storage/base/ trainyard/v1/ proto/text/ proto/tls/")

# Third-party headers that only some folders may see: prefix of the include path | folders.
set(TRAINYARD_RESTRICTED_INCLUDES
  "pqxx/|storage/postgres/"
  "grpcpp/|server/ executor/agent/ clients/ proto/tls/"
  "oneapi/|kernels/cpu/"
  "cuda|kernels/cuda/"
  "cublas|kernels/cuda/"
  "cudnn|kernels/cuda/"
  "nccl|kernels/cuda/"
  "gloo/|executor/engine/parallel/"
  "jpeglib.h|executor/data/images/"
  "png.h|executor/data/images/"
  "yaml-cpp/|proto/text/ clients/ storage/base/flags_file.cc server/fleet/provision/pools.cc")

# Sets `result` to ON when one of `prefixes` (separated by spaces) begins `path`.
function(begins_with_any result path prefixes)
  separate_arguments(prefixes)
  set(${result} OFF PARENT_SCOPE)
  foreach(prefix ${prefixes})
    string(FIND "${path}" "${prefix}" at)
    if(at EQUAL 0)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(check_rooms)
  set(wrong "")
  set(globs "")
  foreach(top kernels storage proto executor server clients)
    list(APPEND globs ${top}/*.h ${top}/*.cc ${top}/*.cu ${top}/*.cuh)
  endforeach()
  file(GLOB_RECURSE files RELATIVE ${CMAKE_SOURCE_DIR} ${globs})
  foreach(file ${files})
    set(room "")
    set(allowed "")
    foreach(row ${TRAINYARD_LAYERS})
      string(REGEX MATCH "^([^|]*)\\|(.*)$" row "${row}")
      set(folder "${CMAKE_MATCH_1}")
      set(prefixes "${CMAKE_MATCH_2}")
      string(FIND "${file}" "${folder}/" at)
      string(LENGTH "${folder}" length)
      string(LENGTH "${room}" best)
      if(at EQUAL 0 AND length GREATER best)
        set(room "${folder}")
        set(allowed "${prefixes}")
      endif()
    endforeach()
    file(STRINGS ${CMAKE_SOURCE_DIR}/${file} lines REGEX "^#include [\"<]")
    foreach(line ${lines})
      string(REGEX REPLACE "^#include [\"<]([^\">]+)[\">].*" "\\1" path "${line}")
      if(path MATCHES "^(kernels|storage|proto|executor|server|clients|trainyard|tests)/")
        begins_with_any(ok "${path}" "${room}/ ${allowed}")
        if(NOT ok)
          string(APPEND wrong "\n  ${file} includes ${path}: ${room} may not")
        endif()
      endif()
      foreach(row ${TRAINYARD_RESTRICTED_INCLUDES})
        string(REGEX MATCH "^([^|]*)\\|(.*)$" row "${row}")
        set(prefix "${CMAKE_MATCH_1}")
        set(homes "${CMAKE_MATCH_2}")
        begins_with_any(guest "${path}" "${prefix}")
        begins_with_any(home "${file}" "${homes}")
        if(guest AND NOT home)
          string(APPEND wrong "\n  ${file} includes ${path}: only ${homes} may")
        endif()
      endforeach()
    endforeach()
  endforeach()
  # ARCHITECTURE.md shows the same table.
  set(expected "")
  foreach(row ${TRAINYARD_LAYERS})
    string(REGEX MATCH "^([^|]*)\\|(.*)$" row "${row}")
    set(folder "${CMAKE_MATCH_1}")
    set(prefixes "nothing of ours")
    if(CMAKE_MATCH_2)
      string(REPLACE " " "` `" prefixes "`${CMAKE_MATCH_2}`")
    endif()
    list(APPEND expected "${folder}: ${prefixes}")
  endforeach()
  set(shown "")
  file(STRINGS ${CMAKE_SOURCE_DIR}/ARCHITECTURE.md lines REGEX "^\\| `[a-z/]+` \\|")
  foreach(line ${lines})
    string(REGEX REPLACE "^\\| `([a-z/]+)` \\|.*\\| ([^|]*) \\|$" "\\1: \\2" line "${line}")
    list(APPEND shown "${line}")
  endforeach()
  foreach(row ${expected})
    if(NOT row IN_LIST shown)
      string(APPEND wrong "\n  ARCHITECTURE.md does not say: ${row}")
    endif()
  endforeach()
  foreach(row ${shown})
    if(NOT row IN_LIST expected)
      string(APPEND wrong "\n  ARCHITECTURE.md says, and the table does not: ${row}")
    endif()
  endforeach()
  if(wrong)
    message(FATAL_ERROR "The table of who may include whom (.cmake/rooms.cmake) is broken:${wrong}")
  endif()
endfunction()
