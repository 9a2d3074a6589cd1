#pragma once

// The one way that this back end uses threads. oneDNN is built on OpenMP, and so are we: one pool.
// A parallel region always takes the whole team, because libgomp ends the threads that a smaller
// team leaves over and starts them anew for the next larger one.

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace trainyard::kernels {

// Elements below which waking a thread costs more than it saves (a fork and join take 1 to 3 us).
inline constexpr int64_t kSerialElements = 8192;

// How many items are worth waking a thread for, if each has so many elements.
inline int64_t GrainOf(int64_t elements) {
  return std::max<int64_t>(1, kSerialElements / elements);
}

// Cuts [0, n) at multiples of `grain` into one run per thread and calls f(begin, end) for each; in
// the calling thread alone when there is one grain or less.
template <typename F>
void ParallelRuns(int threads, int64_t n, int64_t grain, const F& f) {
  const int64_t grains = (n + grain - 1) / grain;
  if (n <= 0) return;
  if (grains <= 1 || threads <= 1) {
    f(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads();
    const int64_t me = omp_get_thread_num();
    const int64_t begin = grains * me / team * grain;
    const int64_t end = std::min(n, grains * (me + 1) / team * grain);
    if (begin < end) f(begin, end);
  }
}

// Calls f(i) for each i in [0, n), which is cut in the same way.
template <typename F>
void ParallelFor(int threads, int64_t n, int64_t grain, const F& f) {
  ParallelRuns(threads, n, grain, [&f](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace trainyard::kernels
