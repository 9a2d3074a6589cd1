// As attention_backward.cu, on tensor cores: dk and dv come from blocks that own keys, dq from
// blocks that own queries, and nothing is added by two blocks.

#include <cmath>

#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_mma.h"

namespace trainyard::kernels::cuda {
namespace {

// Rows per round of the side that a block loops over (queries or keys): fewer where the
// accumulators leave less room.
template <int kDim>
constexpr int kOthers = kDim <= 64 ? 64 : 32;

// Hides a score: its probability and its gradient become 0, whatever was there.
__device__ inline void Unseen(float& score, float& dp, float delta) {
  score = -INFINITY;
  dp = delta;
}

// A block per tile of 64 keys of one (batch, kv_head), summing over the heads that share them. Rows
// of products are keys, columns queries.
template <int kDim, typename T>
__global__ void __launch_bounds__(kMmaThreads)
    KeysAndValuesMmaKernel(BackwardArguments<T> a, bool vectors) {
  constexpr int kQueries = kOthers<kDim>;
  const AttentionShape& shape = a.shape;
  T* k = DynamicShared<T>();  // [64, kDim], and so is v
  T* v = k + MmaElements<kDim>(kMmaRows);
  T* q = v + MmaElements<kDim>(kMmaRows);  // [kQueries, kDim], and so is dy
  T* dy = q + MmaElements<kDim>(kQueries);
  float* lse = reinterpret_cast<float*>(dy + MmaElements<kDim>(kQueries));  // [kQueries]
  float* delta = lse + kQueries;
  const int64_t pair = blockIdx.x / a.tiles;
  const int64_t batch = pair / shape.kv_heads;
  const int kv = static_cast<int>(pair % shape.kv_heads);
  const int first_key = static_cast<int>(blockIdx.x % a.tiles) * kMmaRows;
  const int mine = static_cast<int>(threadIdx.x / kWarp) * 16;
  const int64_t stride = shape.qkv_stride();
  const int keys = shape.Keys(batch);
  const float scale = shape.scale * kLog2E;
  LoadMmaTile<kMmaRows, kDim>(k, a.qkv + shape.KStart(batch, kv), stride, first_key, keys,
                              shape.head_dim, vectors);
  LoadMmaTile<kMmaRows, kDim>(v, a.qkv + shape.VStart(batch, kv), stride, first_key, keys,
                              shape.head_dim, vectors);

  float dk[kDim / 8][4] = {}, dv[kDim / 8][4] = {};
  const int from = shape.causal ? first_key : 0;
  const int tiles =  // of queries, of one head; padding has no gradient
      first_key < keys ? (shape.time - from + kQueries - 1) / kQueries : 0;
  for (int round = 0; round < shape.group() * tiles; ++round) {
    const int head = kv * shape.group() + round / tiles;
    const int first_query = from + round % tiles * kQueries;
    const int64_t row = (batch * shape.heads + head) * shape.time;
    __syncthreads();  // the last round may still be reading
    LoadMmaTile<kQueries, kDim>(q, a.qkv + shape.QStart(batch, head), stride, first_query,
                                shape.time, shape.head_dim, vectors);
    LoadMmaTile<kQueries, kDim>(dy, a.dy + shape.YStart(batch, head), shape.y_stride(), first_query,
                                shape.time, shape.head_dim, vectors);
    for (int i = threadIdx.x; i < kQueries; i += kMmaThreads) {
      const bool inside = first_query + i < shape.time;
      lse[i] = inside ? a.lse[row + first_query + i] * kLog2E : 0.0f;
      delta[i] = inside ? a.delta[row + first_query + i] : 0.0f;
    }
    __syncthreads();
    float p[kQueries / 8][4], ds[kQueries / 8][4];
    MmaRowsDotRows<kQueries, kDim>(k, mine, q, p);
    MmaRowsDotRows<kQueries, kDim>(v, mine, dy, ds);
    if (!shape.AllVisible(first_query, kQueries, first_key, kMmaRows, keys)) {
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int query = MmaCol(n, i), key = first_key + mine + MmaRow(i);
          if (!shape.Visible(first_query + query, key, keys))
            Unseen(p[n][i], ds[n][i], delta[query]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = MmaCol(n, i);
        p[n][i] = Exp2(p[n][i] * scale - lse[query]);
        ds[n][i] = p[n][i] * (ds[n][i] - delta[query]);
      }
    }
    MmaRowsTimesTile<kQueries, kDim>(p, dy, dv);
    MmaRowsTimesTile<kQueries, kDim>(ds, q, dk);
  }
  const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.0f, 1.0f};
  StoreMmaRows<kDim>(a.dqkv + shape.KStart(batch, kv), stride, first_key + mine, shape, vectors, dk,
                     scales);
  StoreMmaRows<kDim>(a.dqkv + shape.VStart(batch, kv), stride, first_key + mine, shape, vectors, dv,
                     ones);
}

// A block per tile of 64 queries of one (batch, head). Rows of products are queries, columns keys.
template <int kDim, typename T>
__global__ void __launch_bounds__(kMmaThreads)
    QueriesMmaKernel(BackwardArguments<T> a, bool vectors) {
  constexpr int kKeys = kOthers<kDim>;
  const AttentionShape& shape = a.shape;
  T* q = DynamicShared<T>();  // [64, kDim], and so is dy
  T* dy = q + MmaElements<kDim>(kMmaRows);
  T* k = dy + MmaElements<kDim>(kMmaRows);  // [kKeys, kDim], and so is v
  T* v = k + MmaElements<kDim>(kKeys);
  const int64_t pair = blockIdx.x / a.tiles;
  const int64_t batch = pair / shape.heads;
  const int head = static_cast<int>(pair % shape.heads);
  const int kv = head / shape.group();
  // The last tiles see the most keys: they start first.
  const int first_query = (a.tiles - 1 - static_cast<int>(blockIdx.x % a.tiles)) * kMmaRows;
  const int mine = static_cast<int>(threadIdx.x / kWarp) * 16;
  const int64_t stride = shape.qkv_stride();
  const int keys = shape.Keys(batch);
  const float scale = shape.scale * kLog2E;
  LoadMmaTile<kMmaRows, kDim>(q, a.qkv + shape.QStart(batch, head), stride, first_query, shape.time,
                              shape.head_dim, vectors);
  LoadMmaTile<kMmaRows, kDim>(dy, a.dy + shape.YStart(batch, head), shape.y_stride(), first_query,
                              shape.time, shape.head_dim, vectors);
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + mine + MmaRow(2 * half);
    const bool inside = query < shape.time;
    lse[half] = inside ? a.lse[pair * shape.time + query] * kLog2E : 0.0f;
    delta[half] = inside ? a.delta[pair * shape.time + query] : 0.0f;
  }

  float dq[kDim / 8][4] = {};
  const int end = shape.causal ? min(keys, first_query + kMmaRows) : keys;
  for (int first_key = 0; first_key < end; first_key += kKeys) {
    __syncthreads();  // the last round may still be reading
    LoadMmaTile<kKeys, kDim>(k, a.qkv + shape.KStart(batch, kv), stride, first_key, keys,
                             shape.head_dim, vectors);
    LoadMmaTile<kKeys, kDim>(v, a.qkv + shape.VStart(batch, kv), stride, first_key, keys,
                             shape.head_dim, vectors);
    __syncthreads();
    float s[kKeys / 8][4], ds[kKeys / 8][4];
    MmaRowsDotRows<kKeys, kDim>(q, mine, k, s);
    MmaRowsDotRows<kKeys, kDim>(dy, mine, v, ds);
    if (!shape.AllVisible(first_query, kMmaRows, first_key, kKeys, keys)) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int query = first_query + mine + MmaRow(i), key = first_key + MmaCol(n, i);
          if (!shape.Visible(query, key, keys)) Unseen(s[n][i], ds[n][i], delta[i / 2]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = Exp2(s[n][i] * scale - lse[i / 2]);
        ds[n][i] = p * (ds[n][i] - delta[i / 2]);
      }
    }
    MmaRowsTimesTile<kKeys, kDim>(ds, k, dq);
  }
  const float scales[2] = {shape.scale, shape.scale};
  StoreMmaRows<kDim>(a.dqkv + shape.QStart(batch, head), stride, first_query + mine, shape, vectors,
                     dq, scales);
}

template <int kDim, typename T>
absl::StatusOr<Kernel> Prepared(const AttentionBackward& op) {
  constexpr int kOther = kOthers<kDim>;
  constexpr size_t kTiles =
      2 * (MmaElements<kDim>(kMmaRows) + MmaElements<kDim>(kOther)) * sizeof(T);
  constexpr size_t kRowSums = 2 * kOther * sizeof(float);
  const auto keys_and_values = KeysAndValuesMmaKernel<kDim, T>;
  const auto queries = QueriesMmaKernel<kDim, T>;
  absl::Status allowed = AllowShared(keys_and_values, kTiles + kRowSums);
  allowed.Update(AllowShared(queries, kTiles));
  if (!allowed.ok()) return allowed;
  const BackwardArguments<T> arguments = ArgumentsOf<T>(op, kMmaRows);
  const int64_t rows = op.batch * op.time * op.heads;
  const Shape of_keys = {.grid = Blocks(op.batch * op.kv_heads * arguments.tiles),
                         .block = dim3(kMmaThreads),
                         .shared_bytes = kTiles + kRowSums};
  const Shape of_queries = {.grid = Blocks(op.batch * op.heads * arguments.tiles),
                            .block = dim3(kMmaThreads),
                            .shared_bytes = kTiles};
  const bool vectors = InVectors(op.qkv.data, op.head_dim) && InVectors(op.dy.data, op.head_dim) &&
                       InVectors(op.dqkv.data, op.head_dim);
  const auto launch = [=](Stream& stream) {
    BackwardArguments<T> a = arguments;
    a.delta = static_cast<float*>(stream.scratch);
    LaunchDelta(stream, a, rows);
    Launch(stream, of_keys, keys_and_values, a, vectors);
    Launch(stream, of_queries, queries, a, vectors);
  };
  return Kernel{.launch = launch,
                .scratch_bytes = AttentionBackwardBytes(op.batch, op.heads, op.time)};
}

}  // namespace

absl::StatusOr<Kernel> PrepareMma(const AttentionBackward& op) {
  // Shared memory: 20, 37 and 51 KiB.
  return ForMma(op, [&]<int kDim, typename T>() { return Prepared<kDim, T>(op); });
}

}  // namespace trainyard::kernels::cuda
