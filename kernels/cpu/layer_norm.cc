#include "kernels/ops/layer_norm.h"

#include <algorithm>
#include <functional>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_cuts.h"
#include "kernels/scratch/sums.h"

namespace trainyard::kernels {

namespace {

// Elements added at a time, so that the norm reads the sums from the L1 cache.
constexpr int64_t kSumElements = 2048;

// The rows [begin, end) of `all`.
template <typename T>
LayerNormRows<T> Between(LayerNormRows<T> all, int64_t begin, int64_t end) {
  all.x += begin * all.cols;
  all.y += begin * all.cols;
  if (all.mean != nullptr) all.mean += begin;
  all.rstd += begin;
  all.rows = end - begin;
  return all;
}

template <typename T>
LayerNormBackwardRows<T> Between(LayerNormBackwardRows<T> all, int64_t begin, int64_t end) {
  all.dy += begin * all.cols;
  all.x += begin * all.cols;
  if (all.dx != nullptr) all.dx += begin * all.cols;
  if (all.mean != nullptr) all.mean += begin;
  all.rstd += begin;
  all.rows = end - begin;
  return all;
}

// dgamma and dbeta: sums over fixed runs of rows are made in the same pass as dx, then added up
// from the first to the last.
template <typename T>
void NormBackward(const VectorTable& vectors, int threads, const LayerNormBackwardRows<T>& all,
                  float* dgammas, bool accumulate) {
  const int64_t partials = scratch::Partials(all.rows), each = scratch::RowsPerPartial(all.rows);
  float* const dbetas = dgammas + partials * all.cols;
  ParallelFor(threads, partials, GrainOf(each * all.cols), [&](int64_t p) {
    LayerNormBackwardRows<T> rows = Between(all, p * each, std::min(all.rows, (p + 1) * each));
    rows.dgamma = all.dgamma == nullptr ? nullptr : dgammas + p * all.cols;
    rows.dbeta = all.dbeta == nullptr ? nullptr : dbetas + p * all.cols;
    LoopsOf<T>(vectors).layer_norm_backward(rows);
  });
  const auto finish = [&](float* sums, float* to) {
    if (to == nullptr) return;
    vectors.f32.column_sum(sums, partials, all.cols, all.cols, sums);
    AddOrCopy(vectors, sums, to, all.cols, accumulate);
  };
  finish(dgammas, all.dgamma);
  finish(dbetas, all.dbeta);
}

// A function that writes the rows [begin, end) of x + residual to op.sum; residual is of R.
template <typename R>
std::function<void(int64_t begin, int64_t end)> SumOfRows(const LayerNormForward& op,
                                                          const ElementLoops<R>& loops) {
  return [add = loops.add_to_f32, cols = op.cols, x = op.x.As<float>(),
          residual = op.residual.As<R>(), sum = op.sum.As<float>()](int64_t begin, int64_t end) {
    add(x + begin * cols, residual + begin * cols, sum + begin * cols, (end - begin) * cols);
  };
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const LayerNormForward& op) {
  std::function<void(int64_t, int64_t)> add;
  if (op.residual) {
    add = ForElement(op.residual.dtype,
                     [&]<typename R>() { return SumOfRows(op, LoopsOf<R>(vectors_)); });
  }
  const int64_t grain = GrainOf(op.cols);
  return ForElement(op.y.dtype, [&]<typename T>() {
    const LayerNormRows<T> all{.x = (op.sum ? op.sum : op.x).As<float>(),
                               .gamma = op.gamma.As<float>(),
                               .beta = OptionalAs<float>(op.beta),
                               .y = op.y.As<T>(),
                               .mean = OptionalAs<float>(op.mean),
                               .rstd = op.rstd.As<float>(),
                               .rows = op.rows,
                               .cols = op.cols,
                               .epsilon = op.epsilon};
    return Kernel{
        [run = LoopsOf<T>(vectors_).layer_norm, threads = threads_, all, grain, add](Stream&) {
          ParallelRuns(threads, all.rows, grain, [&](int64_t begin, int64_t end) {
            if (!add) return run(Between(all, begin, end));
            const int64_t each = std::max<int64_t>(1, kSumElements / all.cols);
            for (int64_t row = begin; row < end; row += each) {
              const int64_t next = std::min(end, row + each);
              add(row, next);
              run(Between(all, row, next));
            }
          });
        }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const LayerNormBackward& op) {
  return ForElement(op.dy.dtype, [&]<typename T>() {
    const LayerNormBackwardRows<T> all{.dy = op.dy.As<T>(),
                                       .x = op.x.As<float>(),
                                       .gamma = op.gamma.As<float>(),
                                       .mean = OptionalAs<float>(op.mean),
                                       .rstd = op.rstd.As<float>(),
                                       .dx = OptionalAs<float>(op.dx),
                                       .dgamma = OptionalAs<float>(op.dgamma),
                                       .dbeta = OptionalAs<float>(op.dbeta),
                                       .rows = op.rows,
                                       .cols = op.cols,
                                       .accumulate_dx = op.accumulate_dx};
    Kernel kernel;
    kernel.scratch_bytes = 2 * scratch::CutRowSums(op.rows, op.cols, op.cuts);
    kernel.launch = [&vectors = vectors_, threads = threads_, all, cuts = op.cuts,
                     accumulate = op.accumulate_params](Stream& stream) {
      auto* const sums = static_cast<float*>(stream.scratch);
      if (cuts == 1) return NormBackward(vectors, threads, all, sums, accumulate);
      float* const dgammas = sums + 2 * scratch::CutPartials(all.rows, cuts) * all.cols;
      float* const dbetas = dgammas + cuts * all.cols;
      int64_t count = 0;
      SumCuts(vectors, all.rows, all.cols, cuts, dgammas,
              [&](int64_t first, int64_t end, float* to) {
                LayerNormBackwardRows<T> rows = Between(all, first, end);
                if (all.dgamma != nullptr) rows.dgamma = to;
                if (all.dbeta != nullptr) rows.dbeta = dbetas + count++ * all.cols;
                NormBackward(vectors, threads, rows, sums, /*accumulate=*/false);
              });
      if (all.dgamma != nullptr) AddOrCopy(vectors, dgammas, all.dgamma, all.cols, accumulate);
      if (all.dbeta == nullptr) return;
      AddCuts(vectors, dbetas, count, all.cols);
      AddOrCopy(vectors, dbetas, all.dbeta, all.cols, accumulate);
    };
    return kernel;
  });
}

}  // namespace trainyard::kernels
