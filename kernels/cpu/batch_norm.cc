#include "kernels/ops/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/scratch/batch_norm.h"

// Both directions pass over the rows twice: once for sums, once for the result. The rows go by in
// chunks of a size that a core's cache holds, which depends on the shape only; the chunks' sums are
// added in double from the first to the last. The second pass takes the chunks from the last to the
// first: the last of them are still in the cache.

namespace trainyard::kernels {
namespace {

using Chunks = scratch::BatchNormChunks;

constexpr int64_t kTile = 32;  // columns whose totals are made together

// Calls f(chunk) for all, in descending order within a thread.
template <typename F>
void EachChunkBackwards(int threads, const Chunks& chunks, const F& f) {
  ParallelRuns(threads, chunks.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = end - 1; i >= begin; --i) f(i);
  });
}

// Calls f(first column, columns) for tiles of the columns.
template <typename F>
void EachTile(int threads, const Chunks& chunks, const F& f) {
  const int64_t grain = std::max(kTile, kSerialElements / chunks.count / kTile * kTile);
  ParallelRuns(threads, chunks.cols, grain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; c += kTile) f(c, std::min(kTile, end - c));
  });
}

// mean, rstd, the running statistics and scale = gamma * rstd of columns [c, c + n), from the
// moments of the chunks (Chan, Golub & LeVeque 1979). means, squares: [chunks, cols]
void FinishMoments(const BatchNormForward& op, const Chunks& chunks, const float* means,
                   const float* squares, float* scale, int64_t c, int64_t n) {
  const auto rows = static_cast<double>(chunks.rows);
  double mean[kTile] = {}, variance[kTile] = {};
  for (int64_t i = 0; i < chunks.count; ++i) {
    const auto size = static_cast<double>(chunks.size(i));
    for (int64_t j = 0; j < n; ++j) mean[j] += size * means[i * chunks.cols + c + j];
  }
  for (int64_t j = 0; j < n; ++j) mean[j] /= rows;
  for (int64_t i = 0; i < chunks.count; ++i) {
    const auto size = static_cast<double>(chunks.size(i));
    for (int64_t j = 0; j < n; ++j) {
      const double d = means[i * chunks.cols + c + j] - mean[j];
      variance[j] += squares[i * chunks.cols + c + j] + size * d * d;
    }
  }
  const double momentum = op.momentum;
  const auto move = [momentum](float& running, double to) {
    running = static_cast<float>(running + momentum * (to - running));
  };
  for (int64_t j = 0; j < n; ++j) {
    const auto rstd = static_cast<float>(1 / std::sqrt(variance[j] / rows + op.epsilon));
    op.mean.As<float>()[c + j] = static_cast<float>(mean[j]);
    op.rstd.As<float>()[c + j] = rstd;
    scale[c + j] = op.gamma.As<float>()[c + j] * rstd;
    move(op.running_mean.As<float>()[c + j], mean[j]);
    move(op.running_var.As<float>()[c + j], variance[j] / (rows - 1));
  }
}

// dgamma, dbeta and, per column, the factors of dx = g * of_g + (x - mean) * of_d + plus, from the
// sums of the chunks. sums, dots: [chunks, cols]; factors: [3, cols]
void FinishSums(const BatchNormBackward& op, const Chunks& chunks, const float* sums,
                const float* dots, float* factors, int64_t c, int64_t n) {
  const auto rows = static_cast<double>(chunks.rows);
  double sum[kTile] = {}, dot[kTile] = {};
  for (int64_t i = 0; i < chunks.count; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      sum[j] += sums[i * chunks.cols + c + j];
      dot[j] += dots[i * chunks.cols + c + j];
    }
  }
  const auto put = [&op](const Buffer& buffer, int64_t column, double value) {
    if (!buffer) return;
    float& to = buffer.As<float>()[column];
    to = static_cast<float>(op.accumulate_params ? to + value : value);
  };
  for (int64_t j = 0; j < n; ++j) {
    const double rstd = op.rstd.As<float>()[c + j];
    const double of_g = op.gamma.As<float>()[c + j] * rstd;
    put(op.dgamma, c + j, dot[j] * rstd);
    put(op.dbeta, c + j, sum[j]);
    factors[c + j] = static_cast<float>(of_g);
    factors[chunks.cols + c + j] = static_cast<float>(-of_g * rstd * rstd * dot[j] / rows);
    factors[2 * chunks.cols + c + j] = static_cast<float>(-of_g * sum[j] / rows);
  }
}

// mean, rstd, the running statistics and scale: [cols].
template <typename T>
void RunMoments(const ElementLoops<T>& loops, int threads, const BatchNormForward& op,
                const Chunks& chunks, float* scale, float* scratch) {
  float* const means = scratch;
  float* const squares = means + chunks.count * chunks.cols;
  const T* const x = op.x.As<T>();
  ParallelFor(threads, chunks.count, 1, [&](int64_t i) {
    loops.batch_norm_moments({.x = x + chunks.begin(i),
                              .mean = means + i * chunks.cols,
                              .squares = squares + i * chunks.cols,
                              .rows = chunks.size(i),
                              .cols = chunks.cols});
  });
  EachTile(threads, chunks,
           [&](int64_t c, int64_t n) { FinishMoments(op, chunks, means, squares, scale, c, n); });
}

template <typename T>
void RunForward(const ElementLoops<T>& loops, int threads, const BatchNormForward& op,
                const Chunks& chunks, float* scratch) {
  float* const scale = scratch;
  if (op.again) {
    for (int64_t c = 0; c < op.cols; ++c) {
      scale[c] = op.gamma.As<float>()[c] * op.rstd.As<float>()[c];
    }
  } else {
    RunMoments(loops, threads, op, chunks, scale, scratch + chunks.cols);
  }
  const T* const x = op.x.As<T>();
  EachChunkBackwards(threads, chunks, [&](int64_t i) {
    loops.batch_norm({.x = x + chunks.begin(i),
                      .mean = op.mean.As<float>(),
                      .scale = scale,
                      .beta = op.beta.As<float>(),
                      .residual = OptionalAs<T>(op.residual, chunks.begin(i)),
                      .y = op.y.As<T>() + chunks.begin(i),
                      .rows = chunks.size(i),
                      .cols = chunks.cols,
                      .relu = op.relu});
  });
}

template <typename T>
void RunBackward(const ElementLoops<T>& loops, int threads, const BatchNormBackward& op,
                 const Chunks& chunks, float* scratch) {
  float* const sums = scratch;
  float* const dots = sums + chunks.count * chunks.cols;
  float* const factors = dots + chunks.count * chunks.cols;
  const T* const x = op.x.As<T>();
  const float* const mean = op.mean.As<float>();
  ParallelFor(threads, chunks.count, 1, [&](int64_t i) {
    loops.batch_norm_sums({.dy = op.dy.As<T>() + chunks.begin(i),
                           .x = x + chunks.begin(i),
                           .y = OptionalAs<T>(op.y, chunks.begin(i)),
                           .mean = mean,
                           .dresidual = OptionalAs<T>(op.dresidual, chunks.begin(i)),
                           .sum = sums + i * chunks.cols,
                           .dot = dots + i * chunks.cols,
                           .rows = chunks.size(i),
                           .cols = chunks.cols});
  });
  EachTile(threads, chunks,
           [&](int64_t c, int64_t n) { FinishSums(op, chunks, sums, dots, factors, c, n); });
  if (!op.dx) return;
  // dresidual holds g already, and dy may be gone.
  const T* const g = op.dresidual ? OptionalAs<T>(op.dresidual) : op.dy.As<T>();
  const T* const y = op.dresidual ? nullptr : OptionalAs<T>(op.y);
  EachChunkBackwards(threads, chunks, [&](int64_t i) {
    loops.batch_norm_gradient({.dy = g + chunks.begin(i),
                               .x = x + chunks.begin(i),
                               .y = y == nullptr ? nullptr : y + chunks.begin(i),
                               .mean = mean,
                               .of_g = factors,
                               .of_d = factors + chunks.cols,
                               .plus = factors + 2 * chunks.cols,
                               .dx = op.dx.As<T>() + chunks.begin(i),
                               .rows = chunks.size(i),
                               .cols = chunks.cols});
  });
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const BatchNormForward& op) {
  const Chunks chunks(op.rows, op.cols);
  return ForElement(op.x.dtype, [&]<typename T>() {
    return Kernel{
        .launch =
            [this, op, chunks](Stream& stream) {
              RunForward(LoopsOf<T>(vectors_), threads_, op, chunks,
                         static_cast<float*>(stream.scratch));
            },
        .scratch_bytes = static_cast<size_t>(scratch::BatchNormForward(op.rows, op.cols))};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const BatchNormInference& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    const auto launch = [run = LoopsOf<T>(vectors_).batch_norm, threads = threads_,
                         op](Stream& stream) {
      float* const scale = static_cast<float*>(stream.scratch);
      for (int64_t c = 0; c < op.cols; ++c) {
        const double variance = op.running_var.As<float>()[c];
        scale[c] = static_cast<float>(op.gamma.As<float>()[c] / std::sqrt(variance + op.epsilon));
      }
      ParallelRuns(threads, op.rows, GrainOf(op.cols), [&](int64_t begin, int64_t end) {
        run({.x = op.x.As<T>() + begin * op.cols,
             .mean = op.running_mean.As<float>(),
             .scale = scale,
             .beta = op.beta.As<float>(),
             .residual = OptionalAs<T>(op.residual, begin * op.cols),
             .y = op.y.As<T>() + begin * op.cols,
             .rows = end - begin,
             .cols = op.cols,
             .relu = op.relu});
      });
    };
    return Kernel{.launch = launch,
                  .scratch_bytes = static_cast<size_t>(scratch::BatchNormInference(op.cols))};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const BatchNormBackward& op) {
  const Chunks chunks(op.rows, op.cols);
  return ForElement(op.dy.dtype, [&]<typename T>() {
    return Kernel{
        .launch =
            [this, op, chunks](Stream& stream) {
              RunBackward(LoopsOf<T>(vectors_), threads_, op, chunks,
                          static_cast<float*>(stream.scratch));
            },
        .scratch_bytes = static_cast<size_t>(scratch::BatchNormBackward(op.rows, op.cols))};
  });
}

}  // namespace trainyard::kernels
