# Read by ctest before it runs tests, not when CMake configures: threads of tests that run the engine spin as
# briefly as those of a worker (executor/run/spin.h), unless the user said how they should wait. tests/in_batches does the
# same for what it starts itself.
if(NOT DEFINED ENV{OMP_WAIT_POLICY})
  if(NOT DEFINED ENV{GOMP_SPINCOUNT})
    set(ENV{GOMP_SPINCOUNT} 1000)
  endif()
  if(NOT DEFINED ENV{KMP_BLOCKTIME})  # Clang's library, which sanitizer builds use: milliseconds
    set(ENV{KMP_BLOCKTIME} 0)
  endif()
endif()
