#pragma once

// Attention of 16-bit elements by cuDNN, which compiles a kernel for the shape and the GPU. Forward
// and backward add in a fixed order: of the two ways that the library has for the gradient by
// queries we take the one that keeps the gradient of the scores, in pieces of the batch and of the
// heads, and not the one that adds to it atomically.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/device.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::kernels::cuda {

// Whether to ask: not with padding, not of fp32, not of odd head sizes or addresses.
bool FitsCudnn(const AttentionForward& op);
bool FitsCudnn(const AttentionBackward& op);

// How much of the work one run of a plan does: `samples` of the batch, and as many heads as share
// `kv_heads` of them.
struct AttentionPiece {
  int64_t samples = 0, kv_heads = 0;
};

// The largest piece whose gradients of scores, of 16 bits, take at most `bytes`; at least one head
// of keys of one sample.
AttentionPiece PieceOf(const AttentionBackward& op, size_t bytes = kMostScoreBytes);

// The library's first choice alone. kUnimplemented: there is none.
absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(const PlanTarget& target,
                                                           const AttentionForward& op);
absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(const PlanTarget& target,
                                                           const AttentionBackward& op,
                                                           const AttentionPiece& piece);

// `own` does the same work. Before the first step (Kernel::tune) both do it on the same numbers,
// and `own` is kept, and standard error told, where they do not agree. kUnimplemented: no plan.
absl::StatusOr<Kernel> PrepareCudnn(Cudnn& dnn, const AttentionForward& op, Kernel own);
absl::StatusOr<Kernel> PrepareCudnn(Cudnn& dnn, const AttentionBackward& op, Kernel own,
                                    size_t score_bytes = kMostScoreBytes);

}  // namespace trainyard::kernels::cuda
