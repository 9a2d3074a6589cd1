#pragma once

#include "kernels/ops/activation.h"
#include "tests/reference/vec.h"

namespace trainyard::reference {

double Activation(kernels::ActivationKind kind, double x);
double ActivationSlope(kernels::ActivationKind kind, double x);

// 1 or 0 for each element: what kernels/ops/dropout.h calls keep.
Vec DropoutKeep(uint64_t seed, uint32_t stream, int64_t step, int64_t first_sample, int64_t samples,
                int64_t per_sample, float p);

// The first n numbers of kernels::DrawNormal.
Vec Normal(uint64_t seed, uint64_t stream, int64_t n, double std);

}  // namespace trainyard::reference
