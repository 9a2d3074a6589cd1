#pragma once

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// Attention of 16-bit elements on tensor cores; the op is one that FitsMma (attention_mma.cuh).
// Probabilities and the gradients of scores are rounded to the type of the elements before they are
// multiplied, as in every flash attention.
absl::StatusOr<Kernel> PrepareMma(const AttentionForward& op);
absl::StatusOr<Kernel> PrepareMma(const AttentionBackward& op);

}  // namespace trainyard::kernels::cuda
