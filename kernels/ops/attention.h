#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// Softmax attention over packed projections.
//   qkv: [batch, time, heads + 2 * kv_heads, head_dim] E: queries, keys, values
//   y: [batch, time, heads, head_dim] E
//   lse: [batch, heads, time], log-sum-exp of the scaled scores, kept for backward
//   lengths: i32 [batch] in [1, time], optional: positions from lengths[b] on are padding
//   y = softmax(scale * q k^T) v over all positions but padding; with causal, position t sees
//   positions <= t
// Each group of heads / kv_heads neighbouring query heads shares one head of keys and values
// (Ainslie et al. 2023). Scores, [time, time] per head, are never stored for the whole batch (Dao
// et al. 2022).
template <typename T>
struct AttentionForwardOf {
  static constexpr const char* kName = "attention";
  T qkv, y, lse;
  int64_t batch = 0, time = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  bool causal = true;
  T lengths;

  const char* Problem() const {
    return heads % kv_heads == 0 ? nullptr : "heads cannot share kv_heads heads of keys and values";
  }
  TY_FIELDS(Read(qkv, E), Read(lengths, Optional(I32)), Write(y, E), Write(lse), batch, time, heads,
            kv_heads, head_dim, scale, causal)
};
using AttentionForward = AttentionForwardOf<Buffer>;

// dy: as y; dqkv: as qkv, overwritten.
template <typename T>
struct AttentionBackwardOf {
  static constexpr const char* kName = "attention_backward";
  T dy, qkv, y, lse, dqkv;
  int64_t batch = 0, time = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  bool causal = true;
  T lengths;

  const char* Problem() const {
    return heads % kv_heads == 0 ? nullptr : "heads cannot share kv_heads heads of keys and values";
  }
  TY_FIELDS(Read(dy, E), Read(qkv, E), Read(lengths, Optional(I32)), Read(y, E), Read(lse),
            Write(dqkv, E), batch, time, heads, kv_heads, head_dim, scale, causal)
};
using AttentionBackward = AttentionBackwardOf<Buffer>;

}  // namespace trainyard::kernels
