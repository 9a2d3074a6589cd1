#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"
#include "kernels/cpu/vector/tile.h"
#include "kernels/cpu/vector/transpose.h"

// Queries are taken kBlock at a time against all keys that they see: the scores of a block are at
// most kBlock x T floats. A head's operands are packed densely first, widths rounded up to 16.
//   T time, D head_dim, Tp and Dp rounded up, V keys that a block sees

namespace trainyard::kernels {

namespace TRAINYARD_ISA {
namespace {

constexpr int64_t kBlock = 16;

constexpr int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

// to[i * Dp + j] = from[i * row + j], padded with zeros.
void Pack(const float* from, int64_t row, int64_t rows, int64_t cols, float* to) {
  const int64_t padded = RoundUp16(cols);
  for (int64_t i = 0; i < rows; ++i) {
    __builtin_memcpy(to + i * padded, from + i * row, sizeof(float) * cols);
    for (int64_t j = cols; j < padded; ++j) to[i * padded + j] = 0;
  }
}

void Unpack(const float* from, int64_t rows, int64_t cols, float* to, int64_t row) {
  const int64_t padded = RoundUp16(cols);
  for (int64_t i = 0; i < rows; ++i) {
    __builtin_memcpy(to + i * row, from + i * padded, sizeof(float) * cols);
  }
}

// to[j * Tp + i] = from[i * row + j], padded with zeros.
void PackTransposed(const float* from, int64_t row, int64_t rows, int64_t cols, float* to) {
  const int64_t padded = RoundUp16(rows);
  TransposeBlock(from, rows, cols, row, to, padded);
  for (int64_t j = 0; j < cols; ++j) {
    for (int64_t i = rows; i < padded; ++i) to[j * padded + i] = 0;
  }
}

// A block of queries: rows first .. first + rows - 1, which see keys below `keys`.
struct Block {
  int64_t first, rows, keys, padded_keys;
};

Block BlockAt(int64_t first, int64_t time, bool causal) {
  Block b{.first = first};
  b.rows = time - first < kBlock ? time - first : kBlock;
  b.keys = causal ? first + b.rows : time;
  b.padded_keys = RoundUp16(b.keys);
  return b;
}

// In place over one row of scores: e^(scale s - largest) for the n keys seen, 0 for the others.
// Returns the sum; *largest_out receives the largest scaled score.
float SoftmaxRow(float* s, int64_t n, int64_t padded, float scale, float* largest_out) {
  VecF best = Splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF v = Load(s + i) * scale;
    Store(s + i, v);
    best = Max(v, best);
  }
  if (i < n) {
    const int64_t left = n - i;
    const VecF v = LoadPart(s + i, left) * scale;
    for (int l = 0; l < kLanes; ++l) s[i + l] = l < left ? v[l] : -__builtin_inff();
    best = Max(Load(s + i), best);
    i += kLanes;
  }
  for (; i < padded; i += kLanes) Store(s + i, Splat(-__builtin_inff()));
  const float largest = ReduceMax(best);
  VecF sum{};
  const int64_t seen = (n + kLanes - 1) / kLanes * kLanes;
  for (i = 0; i < seen; i += kLanes) {
    const VecF e = Exp(Load(s + i) - largest);
    sum += e;
    Store(s + i, e);
  }
  for (; i < padded; i += kLanes) Store(s + i, VecF{});
  *largest_out = largest;
  return ReduceAdd(sum);
}

// Over one row: p = e^(scale s - lse), ds = p (dp - d) scale; 0 for keys not seen.
void GradientRow(float* s, float* dp, int64_t n, int64_t padded, float scale, float lse, float d) {
  for (int64_t i = 0; i < padded; i += kLanes) {
    VecF p = Exp(Load(s + i) * scale - lse);
    if (i + kLanes > n) {
      VecI lane{};
      for (int l = 0; l < kLanes; ++l) lane[l] = l;
      p = lane < static_cast<int32_t>(n > i ? n - i : 0) ? p : VecF{};
    }
    const VecF ds = p * (Load(dp + i) - d) * scale;
    Store(s + i, p);
    // A key that is not seen may hold anything in dp, also infinity.
    Store(dp + i, i >= n ? VecF{} : ds);
  }
}

float Dot(const float* a, const float* b, int64_t n) {
  VecF sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum += Load(a + i) * Load(b + i);
  if (i < n) sum += LoadPart(a + i, n - i) * LoadPart(b + i, n - i);
  return ReduceAdd(sum);
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

void AttentionOfHead(const AttentionHead& h) {
  const int64_t T = h.time, D = h.head_dim, Tp = RoundUp16(T), Dp = RoundUp16(D);
  Pieces pieces{h.scratch};
  float* keys = pieces.Take(D * Tp);
  float* values = pieces.Take(T * Dp);
  float* scores = pieces.Take(kBlock * Tp);
  float* out = pieces.Take(kBlock * Dp);
  float* sums = pieces.Take(Tp);
  PackTransposed(h.k, h.row, T, D, keys);
  Pack(h.v, h.row, T, D, values);
  for (int64_t first = 0; first < T; first += kBlock) {
    const Block b = BlockAt(first, T, h.causal);
    Multiply<false>({.a = h.q + first * h.row,
                     .a_row = h.row,
                     .a_step = 1,
                     .b = keys,
                     .b_row = Tp,
                     .c = scores,
                     .c_row = Tp,
                     .rows = b.rows,
                     .cols = b.padded_keys,
                     .depth = D});
    for (int64_t i = 0; i < b.rows; ++i) {
      sums[first + i] = SoftmaxRow(scores + i * Tp, h.causal ? first + i + 1 : T, b.padded_keys,
                                   h.scale, h.lse + first + i);
    }
    Multiply<false>({.a = scores,
                     .a_row = Tp,
                     .a_step = 1,
                     .b = values,
                     .b_row = Dp,
                     .c = out,
                     .c_row = Dp,
                     .rows = b.rows,
                     .cols = Dp,
                     .depth = b.keys});
    for (int64_t i = 0; i < b.rows; ++i) {
      const float inverse = 1.0f / sums[first + i];
      Map(D, out + i * Dp, h.y + (first + i) * h.y_row, [&](VecF v) { return v * inverse; });
    }
  }
  Map(T, h.lse, sums, h.lse, [](VecF m, VecF sum) { return m + LogOfPositive(sum); });
}

// With d = dy . y for each query (Dao et al. 2022, appendix B):
//   dv = p^T dy    dp = dy v^T    ds = p (dp - d) scale    dq = ds k    dk = ds^T q
void AttentionBackwardOfHead(const AttentionHeadBackward& h) {
  const int64_t T = h.time, D = h.head_dim, Tp = RoundUp16(T), Dp = RoundUp16(D);
  Pieces pieces{h.scratch};
  float* keys_t = pieces.Take(D * Tp);
  float* values_t = pieces.Take(D * Tp);
  float* keys = pieces.Take(T * Dp);
  float* queries = pieces.Take(kBlock * Dp);
  float* dys = pieces.Take(kBlock * Dp);
  float* dkeys = pieces.Take(T * Dp);
  float* dvalues = pieces.Take(T * Dp);
  float* dqueries = pieces.Take(kBlock * Dp);
  float* scores = pieces.Take(kBlock * Tp);
  float* dscores = pieces.Take(kBlock * Tp);
  PackTransposed(h.k, h.row, T, D, keys_t);
  PackTransposed(h.v, h.row, T, D, values_t);
  Pack(h.k, h.row, T, D, keys);
  __builtin_memset(dkeys, 0, sizeof(float) * T * Dp);
  __builtin_memset(dvalues, 0, sizeof(float) * T * Dp);
  for (int64_t first = 0; first < T; first += kBlock) {
    const Block b = BlockAt(first, T, h.causal);
    const float* dy = h.dy + first * h.y_row;
    const float* y = h.y + first * h.y_row;
    Pack(h.q + first * h.row, h.row, b.rows, D, queries);
    Pack(dy, h.y_row, b.rows, D, dys);
    Multiply<false>({.a = queries,
                     .a_row = Dp,
                     .a_step = 1,
                     .b = keys_t,
                     .b_row = Tp,
                     .c = scores,
                     .c_row = Tp,
                     .rows = b.rows,
                     .cols = b.padded_keys,
                     .depth = D});
    Multiply<false>({.a = dys,
                     .a_row = Dp,
                     .a_step = 1,
                     .b = values_t,
                     .b_row = Tp,
                     .c = dscores,
                     .c_row = Tp,
                     .rows = b.rows,
                     .cols = b.padded_keys,
                     .depth = D});
    for (int64_t i = 0; i < b.rows; ++i) {
      GradientRow(scores + i * Tp, dscores + i * Tp, h.causal ? first + i + 1 : T, b.padded_keys,
                  h.scale, h.lse[first + i], Dot(dy + i * h.y_row, y + i * h.y_row, D));
    }
    Multiply<true>({.a = scores,
                    .a_row = 1,
                    .a_step = Tp,
                    .b = dys,
                    .b_row = Dp,
                    .c = dvalues,
                    .c_row = Dp,
                    .rows = b.keys,
                    .cols = Dp,
                    .depth = b.rows});
    Multiply<true>({.a = dscores,
                    .a_row = 1,
                    .a_step = Tp,
                    .b = queries,
                    .b_row = Dp,
                    .c = dkeys,
                    .c_row = Dp,
                    .rows = b.keys,
                    .cols = Dp,
                    .depth = b.rows});
    Multiply<false>({.a = dscores,
                     .a_row = Tp,
                     .a_step = 1,
                     .b = keys,
                     .b_row = Dp,
                     .c = dqueries,
                     .c_row = Dp,
                     .rows = b.rows,
                     .cols = Dp,
                     .depth = b.keys});
    Unpack(dqueries, b.rows, D, h.dq + first * h.row, h.row);
  }
  Unpack(dkeys, T, D, h.dk, h.row);
  Unpack(dvalues, T, D, h.dv, h.row);
}

}  // namespace TRAINYARD_ISA
}  // namespace trainyard::kernels
