#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Softmax attention over packed projections.
//   qkv: [batch, time, heads + 2 * kv_heads, head_dim] E: queries, keys, values
//   y: [batch, time, heads, head_dim] E
//   lse: [batch, heads, time], log-sum-exp of the scaled scores, kept for backward
//   lengths: i32 [batch] in [1, time], optional: positions from lengths[b] on are padding
//   y = softmax(scale * q k^T) v over all positions but padding; with causal, position t sees
//   positions <= t
// Each heads / kv_heads neighbouring queries share a key and a value (Ainslie et al. 2023).
// Never stores time x time for the whole batch (Dao et al. 2022).
struct AttentionForward {
  Buffer qkv, y, lse;
  int64_t batch = 0, time = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  bool causal = true;
  Buffer lengths;
};

// dy: as y; dqkv: as qkv, overwritten.
struct AttentionBackward {
  Buffer dy, qkv, y, lse, dqkv;
  int64_t batch = 0, time = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  bool causal = true;
  Buffer lengths;
};

}  // namespace trainyard::kernels
