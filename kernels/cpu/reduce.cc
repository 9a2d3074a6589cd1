#include "kernels/cpu/reduce.h"

namespace trainyard::kernels {

double SumPairwise(double* partials, int64_t count) {
  for (int64_t left = count; left > 1; left = (left + 1) / 2) {
    for (int64_t i = 0; i < left / 2; ++i) partials[i] = partials[2 * i] + partials[2 * i + 1];
    if (left % 2 == 1) partials[left / 2] = partials[left - 1];
  }
  return count == 0 ? 0.0 : partials[0];
}

}  // namespace trainyard::kernels
