#pragma once

// What the formulas for the kernels' scratch share.
//
// They say what the CPU back end asks for. Of our own kernels it is exact (Winograd's: the most
// that up to kThreads threads take); what oneDNN 2.6 asks for was read off its primitives for AVX2
// and AVX-512, with and without bf16, and AMX, with 1, 2 and 8 threads. How it cuts its work
// depends on caches and threads: what counts is the most that any of its ways takes.
// tests/unit/engine/workspace_test.cc holds them to it.

#include <cstdint>

namespace trainyard::plan {

inline constexpr int64_t kFloat = 4;
inline constexpr int64_t kMiB = int64_t{1} << 20;
// Scratch that grows with the threads is counted for so many.
inline constexpr int64_t kThreads = 8;

inline int64_t Ceil(int64_t n, int64_t each) { return (n + each - 1) / each; }
inline int64_t RoundUp(int64_t n, int64_t each) { return Ceil(n, each) * each; }

}  // namespace trainyard::plan
