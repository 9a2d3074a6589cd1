# Third-party libraries, each found the one way that works on Debian 12.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)  # libjpeg-turbo, for its partial decoding
find_package(PNG REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(absl CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(Protobuf REQUIRED)  # module mode: the config file is absent
pkg_check_modules(YAML_CPP REQUIRED IMPORTED_TARGET yaml-cpp)
pkg_check_modules(SECCOMP REQUIRED IMPORTED_TARGET libseccomp)
find_package(CLI11 REQUIRED)

# oneDNN's own config asks for OpenCL.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
add_library(trainyard_dnnl INTERFACE)
target_link_libraries(trainyard_dnnl INTERFACE ${DNNL_LIBRARY})
target_include_directories(trainyard_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE})

if(TRAINYARD_SERVICE)
  find_package(gRPC CONFIG REQUIRED)
  find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
  pkg_check_modules(PQXX REQUIRED IMPORTED_TARGET libpqxx)
  find_package(PostgreSQL QUIET)
endif()
if(TRAINYARD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
