// With p = exp(scale q k^T - lse) and delta = the sum of dy * y over a row of y (Dao et al. 2022):
//   dv = p^T dy,  dp = dy v^T,  ds = p * (dp - delta) * scale,  dq = ds k,  dk = ds^T q
// dk and dv come from blocks that own keys, dq from blocks that own queries: each score is computed
// twice, and nothing is added by two blocks, so that no atomics are needed and the order is fixed.

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/for_element.h"
#include "kernels/ops/attention.h"

namespace trainyard::kernels::cuda {
namespace {

// A block per tile of kRows keys of one (batch, kv_head), summing over the heads that share them.
// Rows of products are keys, columns queries.
// Its shared memory lets one or two blocks onto a multiprocessor: registers may go past 128.
template <int kRows, int kDim, typename T>
__global__ void __launch_bounds__(kThreads, 1) KeysAndValuesKernel(BackwardArguments<T> a) {
  constexpr int kEach = kRows / kSide, kCols = kDim / kSide;
  const AttentionShape& shape = a.shape;
  float* k = DynamicShared<float>();  // [kRows, kDim], and so are v, q, dy
  float* v = k + TileFloats(kRows, kDim);
  float* q = v + TileFloats(kRows, kDim);
  float* dy = q + TileFloats(kRows, kDim);
  float* p = dy + TileFloats(kRows, kDim);  // [kRows, kRows], and so is ds
  float* ds = p + TileFloats(kRows, kRows);
  const int64_t pair = blockIdx.x / a.tiles;
  const int64_t batch = pair / shape.kv_heads;
  const int kv = static_cast<int>(pair % shape.kv_heads);
  const int first_key = static_cast<int>(blockIdx.x % a.tiles) * kRows;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int64_t stride = shape.qkv_stride();
  LoadTile<kRows, kDim>(k, a.qkv + shape.KStart(batch, kv), stride, first_key, shape);
  LoadTile<kRows, kDim>(v, a.qkv + shape.VStart(batch, kv), stride, first_key, shape);

  float dk[kEach][kCols] = {}, dv[kEach][kCols] = {};
  const int from = shape.causal ? first_key : 0;
  const int keys = shape.Keys(batch);
  const int tiles =  // of queries, of one head; padding has no gradient
      first_key < keys ? (shape.time - from + kRows - 1) / kRows : 0;
  for (int round = 0; round < shape.group() * tiles; ++round) {
    const int head = kv * shape.group() + round / tiles;
    const int first_query = from + round % tiles * kRows;
    __syncthreads();  // the last round may still be reading
    LoadTile<kRows, kDim>(q, a.qkv + shape.QStart(batch, head), stride, first_query, shape);
    LoadTile<kRows, kDim>(dy, a.dy + shape.YStart(batch, head), shape.y_stride(), first_query,
                          shape);
    __syncthreads();
    float s[kEach][kEach], dp[kEach][kEach];
    RowsDotRows<kRows, kDim>(k, q, s);
    RowsDotRows<kRows, kDim>(v, dy, dp);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int query = first_query + tx + kSide * j;
      const int64_t at = (batch * shape.heads + head) * shape.time + query;
      const float lse = query < shape.time ? a.lse[at] : 0.0f;
      const float delta = query < shape.time ? a.delta[at] : 0.0f;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const bool visible = shape.Visible(query, first_key + ty + kSide * i, keys);
        s[i][j] = visible ? expf(s[i][j] * shape.scale - lse) : 0.0f;
        dp[i][j] = s[i][j] * (dp[i][j] - delta);
      }
    }
    StoreScores<kRows>(p, s);
    StoreScores<kRows>(ds, dp);
    __syncthreads();
    RowsTimesTile<kRows, kDim>(p, dy, dv);
    RowsTimesTile<kRows, kDim>(ds, q, dk);
  }
  StoreRows<kRows, kDim>(a.dqkv + shape.KStart(batch, kv), stride, first_key, shape, dk,
                         shape.scale);
  StoreRows<kRows, kDim>(a.dqkv + shape.VStart(batch, kv), stride, first_key, shape, dv, 1.0f);
}

// A block per tile of kRows queries of one (batch, head). Rows of products are queries, columns
// keys.
template <int kRows, int kDim, typename T>
__global__ void __launch_bounds__(kThreads, 1) QueriesKernel(BackwardArguments<T> a) {
  constexpr int kEach = kRows / kSide, kCols = kDim / kSide;
  const AttentionShape& shape = a.shape;
  float* q = DynamicShared<float>();  // [kRows, kDim], and so are dy, k, v
  float* dy = q + TileFloats(kRows, kDim);
  float* k = dy + TileFloats(kRows, kDim);
  float* v = k + TileFloats(kRows, kDim);
  float* ds = v + TileFloats(kRows, kDim);  // [kRows, kRows]
  const int64_t pair = blockIdx.x / a.tiles;
  const int64_t batch = pair / shape.heads;
  const int head = static_cast<int>(pair % shape.heads);
  const int kv = head / shape.group();
  // The last tiles see the most keys: they start first.
  const int first_query = (a.tiles - 1 - static_cast<int>(blockIdx.x % a.tiles)) * kRows;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int64_t stride = shape.qkv_stride();
  LoadTile<kRows, kDim>(q, a.qkv + shape.QStart(batch, head), stride, first_query, shape);
  LoadTile<kRows, kDim>(dy, a.dy + shape.YStart(batch, head), shape.y_stride(), first_query, shape);
  float lse[kEach], delta[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int query = first_query + ty + kSide * i;
    lse[i] = query < shape.time ? a.lse[pair * shape.time + query] : 0.0f;
    delta[i] = query < shape.time ? a.delta[pair * shape.time + query] : 0.0f;
  }

  float dq[kEach][kCols] = {};
  const int keys = shape.Keys(batch);
  const int end = shape.causal ? min(keys, first_query + kRows) : keys;
  for (int first_key = 0; first_key < end; first_key += kRows) {
    __syncthreads();  // the last round may still be reading
    LoadTile<kRows, kDim>(k, a.qkv + shape.KStart(batch, kv), stride, first_key, shape);
    LoadTile<kRows, kDim>(v, a.qkv + shape.VStart(batch, kv), stride, first_key, shape);
    __syncthreads();
    float s[kEach][kEach], dp[kEach][kEach];
    RowsDotRows<kRows, kDim>(q, k, s);
    RowsDotRows<kRows, kDim>(dy, v, dp);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int query = first_query + ty + kSide * i;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const bool visible = shape.Visible(query, first_key + tx + kSide * j, keys);
        const float p = visible ? expf(s[i][j] * shape.scale - lse[i]) : 0.0f;
        dp[i][j] = p * (dp[i][j] - delta[i]);
      }
    }
    StoreScores<kRows>(ds, dp);
    __syncthreads();
    RowsTimesTile<kRows, kDim>(ds, k, dq);
  }
  StoreRows<kRows, kDim>(a.dqkv + shape.QStart(batch, head), stride, first_query, shape, dq,
                         shape.scale);
}

constexpr int kMostSmallHead = 128;  // elements that every GPU has the shared memory for

// The GPU's limit of shared memory per block, for an error message.
std::string SharedLimit() {
  int device = 0;
  cudaDeviceProp properties = {};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    return "the GPU allows less";
  }
  return absl::StrCat(properties.name, " allows ", properties.sharedMemPerBlockOptin);
}

template <int kRows, int kDim, typename T>
absl::StatusOr<Kernel> Prepared(const AttentionBackward& op) {
  constexpr size_t kTiles = 4 * TileFloats(kRows, kDim) * sizeof(float);
  constexpr size_t kScores = TileFloats(kRows, kRows) * sizeof(float);
  const auto keys_and_values = KeysAndValuesKernel<kRows, kDim, T>;
  const auto queries = QueriesKernel<kRows, kDim, T>;
  absl::Status allowed = AllowShared(keys_and_values, kTiles + 2 * kScores);
  allowed.Update(AllowShared(queries, kTiles + kScores));
  if (!allowed.ok()) {
    return absl::UnimplementedError(
        absl::StrCat("cuda attention backward: heads of ", op.head_dim, " elements take ",
                     kTiles + 2 * kScores, " bytes of shared memory per block, and ", SharedLimit(),
                     "; heads of up to ", kMostSmallHead, " fit"));
  }
  const BackwardArguments<T> arguments = ArgumentsOf<T>(op, kRows);
  const int64_t rows = op.batch * op.time * op.heads;
  const dim3 of_keys = Blocks(op.batch * op.kv_heads * arguments.tiles);
  const dim3 of_queries = Blocks(op.batch * op.heads * arguments.tiles);
  const auto launch = [=](Stream& stream) {
    BackwardArguments<T> a = arguments;
    a.delta = static_cast<float*>(stream.scratch);
    LaunchDelta(stream, a, rows);
    Launch(stream, {.grid = of_keys, .shared_bytes = kTiles + 2 * kScores}, keys_and_values, a);
    Launch(stream, {.grid = of_queries, .shared_bytes = kTiles + kScores}, queries, a);
  };
  return Kernel{.launch = launch,
                .scratch_bytes = AttentionBackwardBytes(op.batch, op.heads, op.time)};
}

// The op by our own kernels, without cuDNN and without tensor cores.
template <typename T>
absl::StatusOr<Kernel> PreparedTiles(const AttentionBackward& op) {
  // Shared memory: 70, 102, 43, 75 and 139 KiB; a multiprocessor of 8.0 has 163 and one of 9.0 227,
  // but one of 8.6 and 8.9 has 99.
  if (op.head_dim <= 32) return Prepared<64, 32, T>(op);
  if (op.head_dim <= 64) {
    absl::StatusOr<Kernel> wide = Prepared<64, 64, T>(op);
    return absl::IsUnimplemented(wide.status()) ? Prepared<32, 64, T>(op) : std::move(wide);
  }
  if (op.head_dim <= 128) return Prepared<32, 128, T>(op);
  if (op.head_dim <= 256) return Prepared<32, 256, T>(op);
  return absl::UnimplementedError("cuda attention backward: head_dim is over 256");
}

absl::StatusOr<Kernel> PreparedOwn(const AttentionBackward& op) {
  if (FitsMma(op)) return PrepareMma(op);
  return ForElement(op.qkv.dtype, [&]<typename T>() { return PreparedTiles<T>(op); });
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const AttentionBackward& op) {
  if (absl::Status ok = CheckLimits(op); !ok.ok()) return ok;
  cudaSetDevice(index_);
  return ByCudnnOrOwn(op, PreparedOwn(op), [this] { return OpenCudnn(); });
}

}  // namespace trainyard::kernels::cuda
