#include "kernels/ops/attention.h"

#include "kernels/cpu/bugs.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/scratch/attention.h"

namespace trainyard::kernels {
namespace {

// Where the heads that share key `i` of batch * kv_heads begin, in floats.
struct GroupPlace {
  int64_t q, k, v, y, lse;
  int64_t row, y_row, group;
};

template <typename Op>
GroupPlace PlaceOf(const Op& op, int64_t i) {
  const int64_t b = i / op.kv_heads, kv = i % op.kv_heads, group = op.heads / op.kv_heads;
  const int64_t D = op.head_dim, y_row = op.heads * D, row = y_row + 2 * op.kv_heads * D;
  const int64_t sequence = b * op.time * row;
  return {.q = sequence + kv * group * D,
          .k = sequence + (op.heads + kv) * D,
          .v = sequence + (op.heads + op.kv_heads + kv) * D,
          .y = b * op.time * y_row + kv * group * D,
          .lse = (b * op.heads + kv * group) * op.time,
          .row = row,
          .y_row = y_row,
          .group = group};
}

// The loader checked the lengths.
int64_t KeysOf(const Buffer& lengths, int64_t b, int64_t time) {
  if (!lengths) return time;
  const int32_t length = lengths.As<int32_t>()[b];
  if (length >= 1 && length <= time) return length;
  AbortWith(
      absl::StrCat("attention: length ", length, " of sequence ", b, "; the context is ", time));
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const AttentionForward& op) {
  const int64_t each = scratch::AttentionFloats(op.time, op.head_dim);
  return ForElement(op.qkv.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = scratch::Attention(op.time, op.head_dim, threads_);
    kernel.launch = [run = LoopsOf<T>(vectors_).attention, threads = threads_, op,
                     each](Stream& stream) {
      const T* qkv = op.qkv.As<T>();
      ParallelFor(threads, op.batch * op.kv_heads, 1, [&](int64_t i) {
        const GroupPlace at = PlaceOf(op, i);
        run({.q = qkv + at.q,
             .k = qkv + at.k,
             .v = qkv + at.v,
             .y = op.y.As<T>() + at.y,
             .lse = op.lse.As<float>() + at.lse,
             .row = at.row,
             .y_row = at.y_row,
             .group = at.group,
             .time = op.time,
             .keys = KeysOf(op.lengths, i / op.kv_heads, op.time),
             .head_dim = op.head_dim,
             .scale = op.scale,
             .causal = op.causal,
             .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * each});
      });
    };
    return kernel;
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const AttentionBackward& op) {
  const int64_t each = scratch::AttentionFloats(op.time, op.head_dim);
  return ForElement(op.qkv.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = scratch::Attention(op.time, op.head_dim, threads_);
    kernel.launch = [run = LoopsOf<T>(vectors_).attention_backward, threads = threads_, op,
                     each](Stream& stream) {
      const T* qkv = op.qkv.As<T>();
      T* dqkv = op.dqkv.As<T>();
      ParallelFor(threads, op.batch * op.kv_heads, 1, [&](int64_t i) {
        const GroupPlace at = PlaceOf(op, i);
        run({.q = qkv + at.q,
             .k = qkv + at.k,
             .v = qkv + at.v,
             .dy = op.dy.As<T>() + at.y,
             .y = op.y.As<T>() + at.y,
             .lse = op.lse.As<float>() + at.lse,
             .dq = dqkv + at.q,
             .dk = dqkv + at.k,
             .dv = dqkv + at.v,
             .row = at.row,
             .y_row = at.y_row,
             .group = at.group,
             .time = op.time,
             .keys = KeysOf(op.lengths, i / op.kv_heads, op.time),
             .head_dim = op.head_dim,
             .scale = op.scale,
             .causal = op.causal,
             .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * each});
      });
    };
    return kernel;
  });
}

}  // namespace trainyard::kernels
