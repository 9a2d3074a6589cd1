#pragma once

#include "executor/plan/ops/rules.h"
#include "kernels/scratch/attention.h"
#include "kernels/scratch/cuda.h"

namespace trainyard::plan {

// `products`: how many [time, time, head_dim] products it makes per head.
template <typename O>
double AttentionFlops(double products, const O& o) {
  return products * 2.0 * static_cast<double>(o.batch * o.heads * o.head_dim) *
         static_cast<double>(o.time) * static_cast<double>(o.time) * (o.causal ? 0.5 : 1.0);
}

template <>
struct Rules<AttentionForward> : ForwardOp {
  static void Retype(AttentionForward& o, Typing& typing) {
    typing.ReadNarrow(o.qkv);
    typing.WriteNarrow(o.y);
  }

  static void Differentiate(const AttentionForward& f, TensorId dy, Gradient& gradient) {
    gradient.Overwrite(f.qkv, [&](TensorId dqkv) {
      gradient.Emit(AttentionBackward{.dy = dy,
                                      .qkv = f.qkv,
                                      .y = f.y,
                                      .lse = f.lse,
                                      .dqkv = dqkv,
                                      .batch = f.batch,
                                      .time = f.time,
                                      .heads = f.heads,
                                      .kv_heads = f.kv_heads,
                                      .head_dim = f.head_dim,
                                      .scale = f.scale,
                                      .causal = f.causal,
                                      .lengths = f.lengths});
    });
  }

  // q k^T and p v.
  static double Flops(const AttentionForward& o) { return AttentionFlops(2, o); }
  // cuDNN's forward pass wanted less than this wherever it was asked (tests/gpu/cudnn_plans_test).
  static Scratch ScratchOf(const AttentionForward& o, const Tensors&) {
    return {.cpu = kernels::scratch::Attention(o.time, o.head_dim, kThreads), .gpu = kMiB};
  }
};

template <>
struct Rules<AttentionBackward> : BackwardOp {
  // q k^T again, dy v^T, dq, dk and dv.
  static double Flops(const AttentionBackward& o) { return AttentionFlops(5, o); }
  static Scratch ScratchOf(const AttentionBackward& o, const Tensors& tensors) {
    const int64_t own = kernels::cuda::AttentionBackwardBytes(o.batch, o.heads, o.time);
    const bool narrow = tensors[o.qkv].type != ElementType::kF32;
    return {.cpu = kernels::scratch::Attention(o.time, o.head_dim, kThreads),
            .gpu = std::max(own, narrow ? ByCudnn(o) : 0)};
  }

 private:
  // As many heads at once as the limit allows, at least those that share keys: their gradients of
  // scores in tiles of 128, a number per row, and gradients of keys and values if any are shared.
  static int64_t ByCudnn(const AttentionBackward& o) {
    const int64_t group = o.heads / o.kv_heads, tiles = kernels::scratch::RoundUp(o.time, 128);
    constexpr auto kMost = static_cast<int64_t>(kernels::cuda::kMostScoreBytes);
    const int64_t most = std::max(group, kMost / (2 * o.time * o.time));
    const int64_t heads = std::min(o.batch * o.heads, most);
    const int64_t row = group > 1 ? 1 + o.head_dim : 1;  // floats
    return 2 * heads * tiles * tiles + kMiB + kFloat * heads * o.time * row;
  }
};

}  // namespace trainyard::plan
