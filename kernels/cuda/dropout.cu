#include "kernels/ops/dropout.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/for_element.h"
#include "kernels/random.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

// Uniforms of one Philox call, for four neighbouring elements of a sample.
constexpr int kPerDraw = 4;

// A thread per draw. x, y: [samples, per_sample]; draws_each = ceil(per_sample / 4). kPackSize is 4
// if every draw is whole and aligned to packs of 4 elements, else 1.
template <typename T, int kPackSize>
__global__ void __launch_bounds__(kThreads)
    DropoutKernel(const T* x, T* y, const StepState* state, uint32_t stream, int64_t draws,
                  int64_t draws_each, int64_t per_sample, float p, float scale) {
  constexpr int kPacks = kPerDraw / kPackSize;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= draws) return;
  const RowAndCol at = RowAndColOf(i, draws_each);
  const int64_t first = at.row * per_sample + at.col * kPerDraw;
  const int count = static_cast<int>(min(per_sample - at.col * kPerDraw, int64_t{kPerDraw}));
  Pack<T, kPackSize> packs[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (kPacks == 1 || k < count) packs[k].Load(x + first + k * kPackSize);
  }
  const Random4 random =
      StepRandom(state->seed, stream, state->step, state->first_sample + at.row, at.col);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float kept[kPackSize];
#pragma unroll
    for (int j = 0; j < kPackSize; ++j) {
      kept[j] = UnitUniform(random.v[k * kPackSize + j]) >= p ? packs[k][j] * scale : 0.0f;
    }
    packs[k].Set(kept);
    if (kPacks == 1 || k < count) packs[k].Store(y + first + k * kPackSize);
  }
}

// Some columns of matrices of `rows` rows each, one behind the other: x, y [rows_here, cols], of
// which row 0 is row first_row of all, and column 0 column first_col of all_cols. Where draws begin
// in a row depends on the row.
struct DropoutColumns {
  const StepState* state;
  uint32_t stream;
  int64_t rows, rows_here, first_row, cols, first_col, all_cols;
  float p, scale;

  // The draws of a row are at most so many.
  __host__ __device__ int64_t draws_each() const { return (cols + kPerDraw - 2) / kPerDraw + 1; }
};

// A thread per draw.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DropoutColumnsKernel(const T* x, T* y, DropoutColumns a) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.rows_here * a.draws_each()) return;
  const RowAndCol at = RowAndColOf(i, a.draws_each());
  const RowAndCol of_sample = RowAndColOf(a.first_row + at.row, a.rows);  // sample, row
  const int64_t begin = of_sample.col * a.all_cols + a.first_col, end = begin + a.cols;
  const int64_t draw = begin / kPerDraw + at.col;
  const Random4 random = StepRandom(a.state->seed, a.stream, a.state->step,
                                    a.state->first_sample + of_sample.row, draw);
#pragma unroll
  for (int j = 0; j < kPerDraw; ++j) {
    const int64_t place = draw * kPerDraw + j;  // in the sample
    if (place < begin || place >= end) continue;
    const int64_t element = at.row * a.cols + place - begin;
    y[element] =
        FromFloat<T>(UnitUniform(random.v[j]) >= a.p ? ToFloat(x[element]) * a.scale : 0.0f);
  }
}

template <typename T>
Kernel DropSomeColumns(const Dropout& op) {
  const DropoutColumns columns = {.state = StepStateOf(op.state),
                                  .stream = op.stream,
                                  .rows = op.per_sample / op.cols,
                                  .rows_here = op.rows_here(),
                                  .first_row = op.first_row,
                                  .cols = op.cols,
                                  .first_col = op.first_col,
                                  .all_cols = op.all_cols,
                                  .p = op.p,
                                  .scale = 1.0f / (1.0f - op.p)};
  return Kernel{.launch = [columns, x = op.x.As<T>(), y = op.y.As<T>()](Stream& stream) {
    const int64_t draws = columns.rows_here * columns.draws_each();
    Launch(stream, ThreadForEach(draws), DropoutColumnsKernel<T>, x, y, columns);
  }};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const Dropout& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    if (op.cols > 0) return DropSomeColumns<T>(op);
    return Kernel{.launch = [op](Stream& stream) {
      const T* x = op.x.As<T>();
      T* y = op.y.As<T>();
      const int64_t draws_each = CeilDiv(op.per_sample, kPerDraw);
      const int64_t draws = op.samples * draws_each;
      const bool by_packs = op.per_sample % kPerDraw == 0 && Aligned(kPerDraw * sizeof(T), {x, y});
      Launch(stream, ThreadForEach(draws),
             by_packs ? DropoutKernel<T, kPerDraw> : DropoutKernel<T, 1>, x, y,
             StepStateOf(op.state), op.stream, draws, draws_each, op.per_sample, op.p,
             1.0f / (1.0f - op.p));
    }};
  });
}

}  // namespace trainyard::kernels::cuda
