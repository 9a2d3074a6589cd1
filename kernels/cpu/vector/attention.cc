#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"
#include "kernels/cpu/vector/tile.h"
#include "kernels/cpu/vector/transpose.h"

// Queries are taken kBlock at a time against all keys that they see. Scores are kept transposed, a
// row of kBlock for each key: a lane is a query, so that maxima and sums over keys need no
// horizontal operation, and only the keys of the block itself need a mask. A head's operands are
// packed densely first, widths rounded up to 16.
//   T time, D head_dim, Dp rounded up; E the element type of the projections

namespace trainyard::kernels::TRAINYARD_ISA {
namespace {

constexpr int64_t kBlock = 16;
constexpr int kParts = kBlock / kLanes;  // vectors in a block

constexpr int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

// to[i * Dp + j] = from[i * row + j], padded with zeros.
template <typename T>
void Pack(const T* from, int64_t row, int64_t rows, int64_t cols, float* to) {
  const int64_t padded = RoundUp16(cols);
  for (int64_t i = 0; i < rows; ++i) {
    Copy(cols, from + i * row, to + i * padded);
    for (int64_t j = cols; j < padded; ++j) to[i * padded + j] = 0;
  }
}

template <typename T>
void Unpack(const float* from, int64_t rows, int64_t cols, T* to, int64_t row) {
  const int64_t padded = RoundUp16(cols);
  for (int64_t i = 0; i < rows; ++i) Copy(cols, from + i * padded, to + i * row);
}

// to[j * kBlock + i] = packed[i * Dp + j]; columns of queries that do not exist are zero.
void TransposePacked(const float* packed, int64_t rows, int64_t cols, float* to) {
  if (rows < kBlock) __builtin_memset(to, 0, sizeof(float) * cols * kBlock);
  TransposeBlock(packed, rows, cols, RoundUp16(cols), to, kBlock);
}

// Queries first .. first + rows - 1, which see keys below `keys`.
struct Block {
  int64_t first, rows, keys;
};

Block BlockAt(int64_t first, int64_t time, int64_t keys, bool causal) {
  const int64_t rows = time - first < kBlock ? time - first : kBlock;
  const int64_t seen = causal && first + rows < keys ? first + rows : keys;
  return {.first = first, .rows = rows, .keys = seen};
}

// Among the block's own keys, the query in lane l does not see key first + k for k > l.
TRAINYARD_INLINE VecI Hidden(int64_t key, int64_t first, int part) {
  return LaneNumbers() + part * kLanes < static_cast<int32_t>(key - first);
}

// In place over the scores s[key][query]: e^(scale s - largest), 0 where hidden. Leaves the largest
// and the sum of each query.
void Softmax(const Block& b, bool causal, float scale, float* s, VecF* largest, VecF* sum) {
  for (int part = 0; part < kParts; ++part) {
    float* const at = s + part * kLanes;
    VecF best = Splat(-__builtin_inff());
    for (int64_t k = 0; k < b.keys; ++k) {
      VecF v = Load(at + k * kBlock) * scale;
      if (causal && k > b.first) v = Hidden(k, b.first, part) ? Splat(-__builtin_inff()) : v;
      Store(at + k * kBlock, v);
      best = Max(v, best);
    }
    VecF total{};
    for (int64_t k = 0; k < b.keys; ++k) {
      const VecF e = ExpOfNegative(Load(at + k * kBlock) - best);
      Store(at + k * kBlock, e);
      total += e;
    }
    largest[part] = best;
    sum[part] = total;
  }
}

// In place over s[key][query] and dp[key][query]: p = e^(scale s - lse), ds = p (dp - d) scale with
// d = sum over keys of p dp, which equals dy . y (Dao et al. 2022, appendix B).
void SoftmaxGradient(const Block& b, bool causal, float scale, const float* lse, float* s,
                     float* dp) {
  for (int part = 0; part < kParts; ++part) {
    float* const at = s + part * kLanes;
    float* const d_at = dp + part * kLanes;
    const VecF log_sum = Load(lse + part * kLanes);
    VecF d{};
    for (int64_t k = 0; k < b.keys; ++k) {
      VecF p = ExpOfNegative(Load(at + k * kBlock) * scale - log_sum);
      VecF dpk = Load(d_at + k * kBlock);
      if (causal && k > b.first) {
        const VecI hidden = Hidden(k, b.first, part);
        p = hidden ? VecF{} : p;
        // What is not seen may hold anything, also infinity.
        dpk = hidden ? VecF{} : dpk;
        Store(d_at + k * kBlock, dpk);
      }
      Store(at + k * kBlock, p);
      d += p * dpk;
    }
    for (int64_t k = 0; k < b.keys; ++k) {
      Store(d_at + k * kBlock, Load(at + k * kBlock) * (Load(d_at + k * kBlock) - d) * scale);
    }
  }
}

// s[key][query] = keys . queries, the queries transposed.
void Scores(const float* keys, const float* queries_t, int64_t n, int64_t D, float* s) {
  Multiply<false>({.a = keys,
                   .a_row = RoundUp16(D),
                   .a_step = 1,
                   .b = queries_t,
                   .b_row = kBlock,
                   .c = s,
                   .c_row = kBlock,
                   .rows = n,
                   .cols = kBlock,
                   .depth = D});
}

// out[query] = sum over keys of p[key][query] values[key].
void WeightedSum(const Block& b, const float* p, const float* values, int64_t Dp, float* out) {
  Multiply<false>({.a = p,
                   .a_row = 1,
                   .a_step = kBlock,
                   .b = values,
                   .b_row = Dp,
                   .c = out,
                   .c_row = Dp,
                   .rows = b.rows,
                   .cols = Dp,
                   .depth = b.keys});
}

// out[key] += sum over queries of p[key][query] rows[query].
void AddOuter(const Block& b, const float* p, const float* rows, int64_t Dp, float* out) {
  Multiply<true>({.a = p,
                  .a_row = kBlock,
                  .a_step = 1,
                  .b = rows,
                  .b_row = Dp,
                  .c = out,
                  .c_row = Dp,
                  .rows = b.keys,
                  .cols = Dp,
                  .depth = b.rows});
}

// Hands out consecutive pieces of the scratch.
struct Pieces {
  float* next;
  float* Take(int64_t n) {
    float* piece = next;
    next += RoundUp16(n);
    return piece;
  }
};

}  // namespace

template <typename E>
void AttentionOfHeads(const AttentionHeads<E>& h) {
  const int64_t T = h.time, D = h.head_dim, Dp = RoundUp16(D);
  Pieces pieces{h.scratch};
  float* keys = pieces.Take(T * Dp);
  float* values = pieces.Take(T * Dp);
  float* queries = pieces.Take(kBlock * Dp);
  float* queries_t = pieces.Take(kBlock * D);
  float* scores = pieces.Take(kBlock * T);
  float* out = pieces.Take(kBlock * Dp);
  Pack(h.k, h.row, h.keys, D, keys);
  Pack(h.v, h.row, h.keys, D, values);
  for (int64_t head = 0; head < h.group; ++head) {
    const E* q = h.q + head * D;
    E* y = h.y + head * D;
    float* lse = h.lse + head * T;
    for (int64_t first = 0; first < T; first += kBlock) {
      const Block b = BlockAt(first, T, h.keys, h.causal);
      Pack(q + first * h.row, h.row, b.rows, D, queries);
      TransposePacked(queries, b.rows, D, queries_t);
      Scores(keys, queries_t, b.keys, D, scores);
      VecF largest[kParts], sum[kParts];
      Softmax(b, h.causal, h.scale, scores, largest, sum);
      WeightedSum(b, scores, values, Dp, out);
      float block_lse[kBlock], inverse[kBlock];
      for (int part = 0; part < kParts; ++part) {
        Store(block_lse + part * kLanes, largest[part] + LogOfPositive(sum[part]));
        Store(inverse + part * kLanes, 1.0f / sum[part]);
      }
      for (int64_t i = 0; i < b.rows; ++i) {
        lse[first + i] = block_lse[i];
        Map(D, out + i * Dp, y + (first + i) * h.y_row, [&](VecF v) { return v * inverse[i]; });
      }
    }
  }
}

//   dv = p^T dy    dp = dy v^T    ds = p (dp - d) scale    dq = ds k    dk = ds^T q
// with dk and dv summed over the heads of the group.
template <typename E>
void AttentionBackwardOfHeads(const AttentionHeadsBackward<E>& h) {
  const int64_t T = h.time, D = h.head_dim, Dp = RoundUp16(D);
  Pieces pieces{h.scratch};
  float* keys = pieces.Take(T * Dp);
  float* values = pieces.Take(T * Dp);
  float* dkeys = pieces.Take(T * Dp);
  float* dvalues = pieces.Take(T * Dp);
  float* queries = pieces.Take(kBlock * Dp);
  float* queries_t = pieces.Take(kBlock * D);
  float* dys = pieces.Take(kBlock * Dp);
  float* dys_t = pieces.Take(kBlock * D);
  float* dqueries = pieces.Take(kBlock * Dp);
  float* scores = pieces.Take(kBlock * T);
  float* dscores = pieces.Take(kBlock * T);
  Pack(h.k, h.row, h.keys, D, keys);
  Pack(h.v, h.row, h.keys, D, values);
  __builtin_memset(dkeys, 0, sizeof(float) * T * Dp);
  __builtin_memset(dvalues, 0, sizeof(float) * T * Dp);
  for (int64_t head = 0; head < h.group; ++head) {
    for (int64_t first = 0; first < T; first += kBlock) {
      const Block b = BlockAt(first, T, h.keys, h.causal);
      Pack(h.q + head * D + first * h.row, h.row, b.rows, D, queries);
      Pack(h.dy + head * D + first * h.y_row, h.y_row, b.rows, D, dys);
      TransposePacked(queries, b.rows, D, queries_t);
      TransposePacked(dys, b.rows, D, dys_t);
      float lse[kBlock] = {};
      for (int64_t i = 0; i < b.rows; ++i) lse[i] = h.lse[head * T + first + i];
      Scores(keys, queries_t, b.keys, D, scores);
      Scores(values, dys_t, b.keys, D, dscores);
      SoftmaxGradient(b, h.causal, h.scale, lse, scores, dscores);
      AddOuter(b, scores, dys, Dp, dvalues);
      AddOuter(b, dscores, queries, Dp, dkeys);
      WeightedSum(b, dscores, keys, Dp, dqueries);
      Unpack(dqueries, b.rows, D, h.dq + head * D + first * h.row, h.row);
    }
  }
  Unpack(dkeys, T, D, h.dk, h.row);
  Unpack(dvalues, T, D, h.dv, h.row);
}

template <typename E>
void RegisterAttention(ElementLoops<E>& loops) {
  loops.attention = AttentionOfHeads<E>;
  loops.attention_backward = AttentionBackwardOfHeads<E>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterAttention)

}  // namespace trainyard::kernels::TRAINYARD_ISA
