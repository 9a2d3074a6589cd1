#include "kernels/ops/layer_norm.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

// x, sum: [rows, cols]; residual: [rows, cols] of R; y: [rows, cols] of T; gamma, beta: [cols];
// mean, rstd: [rows]. residual and sum, beta, mean may be null.
template <typename T, typename R>
struct LayerNormArguments {
  const float* x;
  const R* residual;
  float* sum;
  const float *gamma, *beta;
  T* y;
  float *mean, *rstd;
  int64_t rows, cols;
  float epsilon;
  int warps;  // per row
};

// A row held in registers: it is read from memory once.
class HeldRow {
 public:
  __device__ void Read(const float* x, const RowGroup& group) { Hold(x, group, held_); }

  template <typename R>
  __device__ void Add(const R* residual, const RowGroup& group, float* sum) {
    HeldQuads other;
    Hold(residual, group, other);
    EachHeld(group, [&](auto in_quads, int q, int c) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) held_[q][j] += other[q][j];
      Put<decltype(in_quads)::value>(held_[q], c, group.cols, sum);
    });
  }

  // f(InQuads, c, elements [c, c + kQuad)) for each quad of this thread, zeros past the end.
  template <typename F>
  __device__ void Each(const RowGroup& group, F f) {
    EachHeld(group, [&](auto in_quads, int q, int c) { f(in_quads, c, held_[q]); });
  }

 private:
  HeldQuads held_;
};

// A row too long for registers: it is read from memory once, then from the caches, in the same
// order.
class CachedRow {
 public:
  __device__ void Read(const float* x, const RowGroup&) { row_ = x; }

  // A thread reads back what it alone wrote.
  template <typename R>
  __device__ void Add(const R* residual, const RowGroup& group, float* sum) {
    Each(group, [&](auto in_quads, int64_t c, float(&v)[kQuad]) {
      float other[kQuad];
      Take<decltype(in_quads)::value>(residual, c, group.cols, other);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) v[j] += other[j];
      Put<decltype(in_quads)::value>(v, c, group.cols, sum);
    });
    row_ = sum;
  }

  template <typename F>
  __device__ void Each(const RowGroup& group, F f) {
    if (group.in_quads) {
      EachIn<true>(group, f);
    } else {
      EachIn<false>(group, f);
    }
  }

 private:
  template <bool kInQuads, typename F>
  __device__ void EachIn(const RowGroup& group, F f) {
    for (int64_t c = group.first(); c < group.cols; c += group.step()) {
      float v[kQuad];
      Take<kInQuads>(row_, c, group.cols, v);
      f(InQuads<kInQuads>(), c, v);
    }
  }

  const float* row_;
};

// Computes the mean first, then the squares around it, and corrects both for the rounding error of
// the mean, so that a large mean costs no digits. A product is fused with an addition only where
// fmaf says so: the bits are the same with a residual or without, and for a row in registers or
// not.
template <typename T, typename R, typename Row>
__global__ void __launch_bounds__(kThreads) LayerNormKernel(const LayerNormArguments<T, R> a) {
  __shared__ float partial[3 * kBlockWarps];
  RowGroup group = GroupOf(a.warps, a.cols);
  const int64_t index = int64_t{blockIdx.x} * group.rows_at_once() + group.row();
  if (index >= a.rows) group.cols = 0;
  const int64_t at = index * a.cols;
  const bool centred = a.mean != nullptr;
  const auto n = static_cast<float>(a.cols);
  Row row;
  row.Read(a.x + at, group);
  if (a.residual != nullptr) row.Add(a.residual + at, group, a.sum + at);

  float sum[1] = {0};
  if (centred) {
    row.Each(group, [&](auto, int64_t, const float(&v)[kQuad]) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) sum[0] += v[j];
    });
    SumOverRow(group, sum, partial);
  }
  const float m = sum[0] / n;
  float sums[2] = {0, 0};  // of the differences from m, and of their squares
  row.Each(group, [&](auto in_quads, int64_t c, const float(&v)[kQuad]) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (!decltype(in_quads)::value && c + j >= group.cols) continue;
      const float d = v[j] - m;
      sums[0] += d;
      sums[1] = fmaf(d, d, sums[1]);
    }
  });
  SumOverRow(group, sums, partial + kBlockWarps);
  const float rest = centred ? sums[0] / n : 0.0f;
  const float r = 1.0f / sqrtf(fmaf(-rest, rest, sums[1] / n) + a.epsilon);
  row.Each(group, [&](auto in_quads, int64_t c, const float(&v)[kQuad]) {
    constexpr bool kInQuads = decltype(in_quads)::value;
    float gamma[kQuad], beta[kQuad] = {0, 0, 0, 0}, y[kQuad];
    TakeConstant<kInQuads>(a.gamma, c, group.cols, gamma);
    if (a.beta != nullptr) TakeConstant<kInQuads>(a.beta, c, group.cols, beta);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) y[j] = fmaf((v[j] - m - rest) * r, gamma[j], beta[j]);
    Put<kInQuads>(y, c, group.cols, a.y + at);
  });
  if (group.cols > 0 && group.thread() == 0) {
    if (centred) a.mean[index] = m + rest;
    a.rstd[index] = r;
  }
}

template <typename T, typename R>
Kernel Norm(const LayerNormForward& op) {
  const int warps = WarpsPerRow(op.cols);
  const LayerNormArguments<T, R> a = {.x = op.x.As<float>(),
                                      .residual = OptionalAs<R>(op.residual),
                                      .sum = OptionalAs<float>(op.sum),
                                      .gamma = op.gamma.As<float>(),
                                      .beta = OptionalAs<float>(op.beta),
                                      .y = op.y.As<T>(),
                                      .mean = OptionalAs<float>(op.mean),
                                      .rstd = op.rstd.As<float>(),
                                      .rows = op.rows,
                                      .cols = op.cols,
                                      .epsilon = op.epsilon,
                                      .warps = warps};
  return {.launch = [a](Stream& stream) {
    const Shape shape{.grid = Blocks(CeilDiv(a.rows, kBlockWarps / a.warps))};
    if (a.cols <= kMostHeld) {
      Launch(stream, shape, LayerNormKernel<T, R, HeldRow>, a);
    } else {
      Launch(stream, shape, LayerNormKernel<T, R, CachedRow>, a);
    }
  }};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const LayerNormForward& op) {
  const DType type = op.y.dtype, other = op.residual.dtype;
  return ForElement(type, [&]<typename T>() -> Kernel {
    if (other == DType::kF32) return Norm<T, float>(op);
    if constexpr (DTypeOf<T>::value != DType::kF32) {
      return Norm<T, T>(op);
    } else {
      return ForElement(other, [&]<typename R>() { return Norm<float, R>(op); });
    }
  });
}

}  // namespace trainyard::kernels::cuda
