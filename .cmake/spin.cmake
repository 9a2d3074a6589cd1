# Read by ctest before it runs tests, not when CMake configures: threads of tests that run the engine spin as
# briefly as those of a worker (executor/run/spin.h), unless the user said how they should wait.
if(NOT DEFINED ENV{GOMP_SPINCOUNT} AND NOT DEFINED ENV{OMP_WAIT_POLICY})
  set(ENV{GOMP_SPINCOUNT} 1000)
endif()
