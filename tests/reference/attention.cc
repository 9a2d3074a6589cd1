#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>

namespace trainyard::reference {
namespace {

// Places of one head of one sequence.
struct Head {
  const AttentionShape& s;
  int64_t b, h;

  // part: 0 query, 1 key, 2 value
  int64_t In(int64_t t, int part, int64_t d) const {
    const int64_t kv = h / s.group;
    const int64_t place = part == 0 ? h : s.heads + (part - 1) * s.kv_heads() + kv;
    return (b * s.time + t) * s.qkv_row() + place * s.head_dim + d;
  }
  int64_t Out(int64_t t, int64_t d) const {
    return ((b * s.time + t) * s.heads + h) * s.head_dim + d;
  }
  int64_t Lse(int64_t t) const { return (b * s.heads + h) * s.time + t; }
  int64_t Seen(int64_t t) const {
    const int64_t keys = s.lengths.empty() ? s.time : s.lengths[b];
    return s.causal ? std::min(t + 1, keys) : keys;
  }

  double Score(const Vec& qkv, int64_t t, int64_t key) const {
    double score = 0;
    for (int64_t d = 0; d < s.head_dim; ++d) score += qkv[In(t, 0, d)] * qkv[In(key, 1, d)];
    return score * s.scale;
  }

  double LogSumExp(const Vec& qkv, int64_t t) const {
    double largest = -INFINITY, sum = 0;
    for (int64_t key = 0; key < Seen(t); ++key) largest = std::fmax(largest, Score(qkv, t, key));
    for (int64_t key = 0; key < Seen(t); ++key) sum += std::exp(Score(qkv, t, key) - largest);
    return largest + std::log(sum);
  }
};

}  // namespace

AttentionResult Attention(const Vec& qkv, const AttentionShape& shape) {
  AttentionResult out{Vec(shape.y_size(), 0.0), Vec(shape.lse_size())};
  for (int64_t i = 0; i < shape.batch * shape.heads; ++i) {
    const Head at{shape, i / shape.heads, i % shape.heads};
    for (int64_t t = 0; t < shape.time; ++t) {
      const double lse = at.LogSumExp(qkv, t);
      out.lse[at.Lse(t)] = lse;
      for (int64_t key = 0; key < at.Seen(t); ++key) {
        const double p = std::exp(at.Score(qkv, t, key) - lse);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          out.y[at.Out(t, d)] += p * qkv[at.In(key, 2, d)];
        }
      }
    }
  }
  return out;
}

Vec AttentionBackward(const Vec& dy, const Vec& qkv, const AttentionShape& shape) {
  const AttentionResult forward = Attention(qkv, shape);
  Vec dqkv(shape.qkv_size(), 0.0);
  for (int64_t i = 0; i < shape.batch * shape.heads; ++i) {
    const Head at{shape, i / shape.heads, i % shape.heads};
    for (int64_t t = 0; t < shape.time; ++t) {
      double own = 0;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        own += dy[at.Out(t, d)] * forward.y[at.Out(t, d)];
      }
      for (int64_t key = 0; key < at.Seen(t); ++key) {
        const double p = std::exp(at.Score(qkv, t, key) - forward.lse[at.Lse(t)]);
        double dp = 0;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          dp += dy[at.Out(t, d)] * qkv[at.In(key, 2, d)];
          dqkv[at.In(key, 2, d)] += p * dy[at.Out(t, d)];
        }
        const double ds = p * (dp - own) * shape.scale;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          dqkv[at.In(t, 0, d)] += ds * qkv[at.In(key, 1, d)];
          dqkv[at.In(key, 1, d)] += ds * qkv[at.In(t, 0, d)];
        }
      }
    }
  }
  return dqkv;
}

}  // namespace trainyard::reference
