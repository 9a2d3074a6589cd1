# Finds the CUDA toolkit, on PATH or in its usual prefix. TRAINYARD_HAVE_CUDA says that the CUDA back end is
# built; TRAINYARD_HAVE_CUDA_HEADERS says that the toolkit and cuDNN's headers are there, which is enough for
# the emulator of tests/gpu (TRAINYARD_CUDA=EMULATED builds that alone). Architectures are named, never
# `native`: what is built here runs elsewhere.

set(TRAINYARD_HAVE_CUDA OFF)
set(TRAINYARD_HAVE_CUDA_HEADERS OFF)
if(NOT TRAINYARD_CUDA MATCHES "^(AUTO|ON|OFF|EMULATED)$")
  message(FATAL_ERROR "TRAINYARD_CUDA is '${TRAINYARD_CUDA}': expected AUTO, ON, OFF or EMULATED")
endif()
if(NOT TRAINYARD_CUDA STREQUAL "OFF")
  find_program(NVCC nvcc HINTS /usr/local/cuda/bin)
  find_path(CUDNN_INCLUDE cudnn.h HINTS /usr/include /usr/include/x86_64-linux-gnu
            /usr/local/cuda/include)
  if(NVCC AND CUDNN_INCLUDE)
    set(TRAINYARD_HAVE_CUDA_HEADERS ON)
    if(NOT TRAINYARD_CUDA STREQUAL "EMULATED")
      set(CMAKE_CUDA_COMPILER ${NVCC})
      if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        # 80 is also PTX, for GPUs that came later: their driver compiles it at the first start.
        set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
      endif()
      enable_language(CUDA)
      # CMake 3.25 does not know C++20 for CUDA.
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA_STANDARD 20)
      set(TRAINYARD_HAVE_CUDA ON)
    endif()
    find_package(CUDAToolkit REQUIRED)
  elseif(TRAINYARD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRAINYARD_CUDA=ON, but nvcc or cudnn.h was not found")
  endif()
endif()
message(STATUS "CUDA back end: ${TRAINYARD_HAVE_CUDA}, emulated in tests: ${TRAINYARD_HAVE_CUDA_HEADERS}")
