#include "kernels/cpu/reduce.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/element.h"
#include "kernels/scratch/sums.h"

namespace trainyard::kernels {

double SumPairwise(double* partials, int64_t count) {
  for (int64_t left = count; left > 1; left = (left + 1) / 2) {
    for (int64_t i = 0; i < left / 2; ++i) partials[i] = partials[2 * i] + partials[2 * i + 1];
    if (left % 2 == 1) partials[left / 2] = partials[left - 1];
  }
  return count == 0 ? 0.0 : partials[0];
}

template <typename T>
Kernel ReduceToDouble(int threads, double (*partial)(const T* x, int64_t n), const T* x, int64_t n,
                      double* sum, bool accumulate) {
  constexpr int64_t kEach = scratch::kReductionRun;
  const int64_t count = scratch::Ceil(n, kEach);
  Kernel kernel;
  kernel.scratch_bytes = scratch::Reduction(n);
  kernel.launch = [=](Stream& stream) {
    double* const partials = static_cast<double*>(stream.scratch);
    ParallelFor(threads, count, 4, [&](int64_t i) {
      partials[i] = partial(x + i * kEach, std::min(kEach, n - i * kEach));
    });
    const double total = SumPairwise(partials, count);
    *sum = accumulate ? *sum + total : total;
  };
  return kernel;
}
template Kernel ReduceToDouble(int, double (*)(const float*, int64_t), const float*, int64_t,
                               double*, bool);
template Kernel ReduceToDouble(int, double (*)(const BFloat16*, int64_t), const BFloat16*, int64_t,
                               double*, bool);
template Kernel ReduceToDouble(int, double (*)(const Float16*, int64_t), const Float16*, int64_t,
                               double*, bool);

}  // namespace trainyard::kernels
