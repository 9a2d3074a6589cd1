#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename Op>
absl::Status CheckShape(const char* name, const Op& op) {
  return CheckSizes(
      name,
      {{"batch", op.batch}, {"time", op.time}, {"heads", op.heads}, {"head_dim", op.head_dim}});
}

// Where head `i` of batch * heads begins: in qkv and its gradient, in y, in lse.
struct HeadPlace {
  int64_t qkv, y, lse;
};

template <typename Op>
HeadPlace PlaceOf(const Op& op, int64_t i) {
  const int64_t b = i / op.heads, h = i % op.heads;
  const int64_t width = op.heads * op.head_dim;
  return {.qkv = b * op.time * 3 * width + h * op.head_dim,
          .y = b * op.time * width + h * op.head_dim,
          .lse = i * op.time};
}

}  // namespace

// The pieces of the backward pass, each rounded up to 16 floats (vector/attention.cc).
int64_t AttentionScratchFloats(int64_t time, int64_t head_dim) {
  constexpr int64_t kBlock = 16;
  const int64_t padded = (head_dim + 15) / 16 * 16;
  return 4 * time * padded + 5 * kBlock * padded + 2 * kBlock * time;
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const AttentionForward& op) {
  absl::Status ok = CheckOperands("attention", {{"qkv", op.qkv}, {"y", op.y}, {"lse", op.lse}});
  if (ok.ok()) ok = CheckShape("attention", op);
  if (!ok.ok()) return ok;
  const int64_t scratch = AttentionScratchFloats(op.time, op.head_dim);
  Kernel kernel;
  kernel.scratch_bytes = threads_ * scratch * sizeof(float);
  kernel.launch = [run = vectors_.attention, threads = threads_, op, scratch](Stream& stream) {
    const int64_t width = op.heads * op.head_dim;
    ParallelRuns(threads, op.batch * op.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const HeadPlace at = PlaceOf(op, i);
        const float* q = op.qkv.As<float>() + at.qkv;
        run({.q = q,
             .k = q + width,
             .v = q + 2 * width,
             .y = op.y.As<float>() + at.y,
             .lse = op.lse.As<float>() + at.lse,
             .row = 3 * width,
             .y_row = width,
             .time = op.time,
             .head_dim = op.head_dim,
             .scale = op.scale,
             .causal = op.causal,
             .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * scratch});
      }
    });
  };
  return kernel;
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const AttentionBackward& op) {
  absl::Status ok = CheckOperands(
      "attention backward",
      {{"dy", op.dy}, {"qkv", op.qkv}, {"y", op.y}, {"lse", op.lse}, {"dqkv", op.dqkv}});
  if (ok.ok()) ok = CheckShape("attention backward", op);
  if (!ok.ok()) return ok;
  const int64_t scratch = AttentionScratchFloats(op.time, op.head_dim);
  Kernel kernel;
  kernel.scratch_bytes = threads_ * scratch * sizeof(float);
  kernel.launch = [run = vectors_.attention_backward, threads = threads_, op,
                   scratch](Stream& stream) {
    const int64_t width = op.heads * op.head_dim;
    ParallelRuns(threads, op.batch * op.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const HeadPlace at = PlaceOf(op, i);
        const float* q = op.qkv.As<float>() + at.qkv;
        float* dq = op.dqkv.As<float>() + at.qkv;
        run({.q = q,
             .k = q + width,
             .v = q + 2 * width,
             .dy = op.dy.As<float>() + at.y,
             .y = op.y.As<float>() + at.y,
             .lse = op.lse.As<float>() + at.lse,
             .dq = dq,
             .dk = dq + width,
             .dv = dq + 2 * width,
             .row = 3 * width,
             .y_row = width,
             .time = op.time,
             .head_dim = op.head_dim,
             .scale = op.scale,
             .causal = op.causal,
             .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * scratch});
      }
    });
  };
  return kernel;
}

}  // namespace trainyard::kernels
