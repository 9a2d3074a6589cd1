#include "kernels/ops/attention.h"

#include <cmath>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// A block per tile of kRows queries of one (batch, head). Shared: q, then k and later v in one
// place, and the probabilities. The output stays in registers, rescaled whenever a row's maximum
// grows (Milakov & Gimelshein 2018; Dao et al. 2022).
template <int kRows, int kDim, typename T>
__global__ void __launch_bounds__(kThreads)
    AttentionKernel(const T* qkv, T* y, float* lse, AttentionShape shape, int tiles) {
  constexpr int kEach = kRows / kSide, kCols = kDim / kSide;
  float* q = DynamicShared<float>();        // [kRows, kDim]
  float* kv = q + TileFloats(kRows, kDim);  // [kRows, kDim]
  float* p = kv + TileFloats(kRows, kDim);  // [kRows, kRows]
  const int64_t pair = blockIdx.x / tiles;  // batch * heads + head
  const int64_t batch = pair / shape.heads;
  const int head = static_cast<int>(pair % shape.heads);
  // The last tiles see the most keys: they start first.
  const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x % tiles)) * kRows;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const T* k_rows = qkv + shape.KStart(batch, head / shape.group());
  const T* v_rows = qkv + shape.VStart(batch, head / shape.group());

  LoadTile<kRows, kDim>(q, qkv + shape.QStart(batch, head), shape.qkv_stride(), first_query, shape);
  float out[kEach][kCols] = {};
  float largest[kEach], total[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    largest[i] = -INFINITY;
    total[i] = 0;
  }
  const int keys = shape.Keys(batch);
  const int end = shape.causal ? min(keys, first_query + kRows) : keys;
  for (int first_key = 0; first_key < end; first_key += kRows) {
    __syncthreads();  // the last round may still be reading v and p
    LoadTile<kRows, kDim>(kv, k_rows, shape.qkv_stride(), first_key, shape);
    __syncthreads();
    float s[kEach][kEach];
    RowsDotRows<kRows, kDim>(q, kv, s);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int query = first_query + ty + kSide * i;
      float row_largest = largest[i];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const bool visible = shape.Visible(query, first_key + tx + kSide * j, keys);
        s[i][j] = visible ? s[i][j] * shape.scale : -INFINITY;
        row_largest = fmaxf(row_largest, s[i][j]);
      }
      row_largest = RowMax(row_largest);
      // A row beyond the last query sees nothing at all; it must not turn into NaN on the way.
      const float around = row_largest == -INFINITY ? 0.0f : row_largest;
      const float shrink = expf(largest[i] - around);
      float row_total = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        s[i][j] = expf(s[i][j] - around);
        row_total += s[i][j];
      }
      total[i] = total[i] * shrink + RowTotal(row_total);
      largest[i] = row_largest;
#pragma unroll
      for (int j = 0; j < kCols; ++j) out[i][j] *= shrink;
    }
    StoreScores<kRows>(p, s);
    __syncthreads();  // everyone is done with k
    LoadTile<kRows, kDim>(kv, v_rows, shape.qkv_stride(), first_key, shape);
    __syncthreads();
    const bool diagonal = shape.causal && first_key + kRows > first_query;
    if (diagonal || (keys < shape.time && first_key + kRows > keys)) {
      RowsTimesTile<kRows, kDim, true>(p, kv, out);
    } else {
      RowsTimesTile<kRows, kDim>(p, kv, out);
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int query = first_query + ty + kSide * i;
    if (query >= shape.time) continue;
    if (tx == 0) lse[pair * shape.time + query] = largest[i] + logf(total[i]);
#pragma unroll
    for (int j = 0; j < kCols; ++j) out[i][j] /= total[i];
  }
  StoreRows<kRows, kDim>(y + shape.YStart(batch, head), shape.y_stride(), first_query, shape, out,
                         1.0f);
}

template <int kRows, int kDim, typename T>
absl::StatusOr<Kernel> Prepared(const AttentionForward& op) {
  constexpr size_t kShared =
      (2 * TileFloats(kRows, kDim) + TileFloats(kRows, kRows)) * sizeof(float);
  const auto kernel = AttentionKernel<kRows, kDim, T>;
  const absl::Status allowed = AllowShared(kernel, kShared);
  if (!allowed.ok()) return allowed;
  const AttentionShape shape = ShapeOf(op);
  const int tiles = static_cast<int>(CeilDiv(op.time, kRows));
  return Kernel{.launch = [op, kernel, shape, tiles](Stream& stream) {
    Launch(stream, {.grid = Blocks(op.batch * op.heads * tiles), .shared_bytes = kShared}, kernel,
           op.qkv.As<T>(), op.y.As<T>(), op.lse.As<float>(), shape, tiles);
  }};
}

// The op by our own kernels, without cuDNN.
absl::StatusOr<Kernel> PreparedOwn(const AttentionForward& op) {
  if (FitsMma(op)) return PrepareMma(op);
  // Shared memory: 35, 51, 83 and 70 KiB; a multiprocessor of 8.0 has 163, one of 9.0 has 227.
  return ForElement(op.qkv.dtype, [&]<typename T>() -> absl::StatusOr<Kernel> {
    if (op.head_dim <= 32) return Prepared<64, 32, T>(op);
    if (op.head_dim <= 64) return Prepared<64, 64, T>(op);
    if (op.head_dim <= 128) return Prepared<64, 128, T>(op);
    if (op.head_dim <= 256) return Prepared<32, 256, T>(op);
    return absl::UnimplementedError("cuda attention: head_dim is over 256");
  });
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const AttentionForward& op) {
  if (absl::Status ok = CheckLimits(op); !ok.ok()) return ok;
  cudaSetDevice(index_);
  return ByCudnnOrOwn(op, PreparedOwn(op), [this] { return OpenCudnn(); });
}

}  // namespace trainyard::kernels::cuda
