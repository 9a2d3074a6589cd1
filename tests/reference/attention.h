#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

struct AttentionShape {
  int64_t batch = 1, time = 1, heads = 1, head_dim = 1;
  double scale = 1;
  bool causal = true;
  int64_t group = 1;                  // heads that share a key and a value
  std::vector<int32_t> lengths = {};  // by sequence; empty: no padding

  int64_t kv_heads() const { return heads / group; }
  int64_t qkv_row() const { return (heads + 2 * kv_heads()) * head_dim; }
  int64_t qkv_size() const { return batch * time * qkv_row(); }
  int64_t y_size() const { return batch * time * heads * head_dim; }
  int64_t lse_size() const { return batch * heads * time; }
};

struct AttentionResult {
  Vec y, lse;
};
AttentionResult Attention(const Vec& qkv, const AttentionShape& shape);

// dqkv
Vec AttentionBackward(const Vec& dy, const Vec& qkv, const AttentionShape& shape);

}  // namespace trainyard::reference
