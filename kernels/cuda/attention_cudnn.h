#pragma once

// Attention of 16-bit elements by cuDNN, which compiles a kernel for the shape and the GPU. Forward
// and backward add in a fixed order: cuDNN can compute the gradient by queries in two ways, and we
// take the one that keeps the gradient of the scores in memory, in pieces of the batch and of the
// heads, not the one that adds with atomics. The graph decides which: if an fp32 tensor in memory
// takes the product and a further operation rounds it, cuDNN adds with atomics, and its engines do
// not carry CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC then. (From cuDNN 9.25 on, engine 6 with
// CUDNN_KNOB_TYPE_STAGES = 4 adds in a fixed order there; 9.19 refuses that value.)

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

// Whether to ask cuDNN at all: not for padded batches, not in fp32, and only if heads and addresses
// are multiples of 16 bytes.
bool FitsCudnn(const AttentionForward& op);
bool FitsCudnn(const AttentionBackward& op);

// What one run of a plan covers: `samples` of the batch, and `kv_heads` heads of keys and values
// with all query heads that share them.
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

// `own` is our own kernel for the same op. Before the first step (Kernel::tune) both run on the
// same numbers; if they disagree, `own` runs from then on and standard error says so.
// kUnimplemented: cuDNN has no plan.
absl::StatusOr<Kernel> PrepareCudnn(Cudnn& dnn, const AttentionForward& op, Kernel own);
absl::StatusOr<Kernel> PrepareCudnn(Cudnn& dnn, const AttentionBackward& op, Kernel own,
                                    size_t score_bytes = kMostScoreBytes);

// cuDNN's kernel if it takes the op, else `own`. `open` opens cuDNN; it is called only if needed.
template <typename Op, typename Open>
absl::StatusOr<Kernel> ByCudnnOrOwn(const Op& op, absl::StatusOr<Kernel> own, const Open& open) {
  if (!own.ok() || !FitsCudnn(op)) return own;
  const absl::StatusOr<Cudnn*> dnn = open();
  if (!dnn.ok()) return own;
  absl::StatusOr<Kernel> by_cudnn = PrepareCudnn(**dnn, op, *own);
  return absl::IsUnimplemented(by_cudnn.status()) ? own : by_cudnn;
}

}  // namespace trainyard::kernels::cuda
