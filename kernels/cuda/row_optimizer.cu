#include "kernels/ops/row_optimizer.h"

#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cuda_device.h"

namespace trainyard::kernels::cuda {
namespace {

// What both optimizers read. A thread per element of grad; rows are distinct.
struct Rows {
  float* w;
  const float* grad;  // [places, width]
  const int32_t* ids;
  const float* grad_scale;  // [1] or null
  const StepState* state;
  int64_t places, width;
  float learning_rate_scale;
};

// Where element i of grad belongs in the tables; -1: nowhere, or the step is not taken.
__device__ inline int64_t PlaceInTables(const Rows& r, const TableList& tables, int64_t i) {
  if (i >= r.places * r.width || !IsTaken(r.grad_scale)) return -1;
  const int64_t place = i / r.width;
  const int32_t id = r.ids[place];
  return id < 0 ? -1 : tables.start[place % tables.count] + id * r.width + i % r.width;
}

__global__ void __launch_bounds__(kThreads) SgdRowsKernel(Rows r, TableList tables) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t at = PlaceInTables(r, tables, i);
  if (at < 0) return;
  const float scale = r.grad_scale != nullptr ? r.grad_scale[0] : 1.0f;
  const float g = r.grad[i] * scale;
  r.w[at] -= r.state->learning_rate * r.learning_rate_scale * g;
}

__global__ void __launch_bounds__(kThreads)
    AdamWRowsKernel(Rows r, float* m, float* v, TableList tables, AdamWHyper hyper,
                    const AdamWCorrections* corrections) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t at = PlaceInTables(r, tables, i);
  if (at < 0) return;
  const float g = r.grad_scale != nullptr ? r.grad[i] * r.grad_scale[0] : r.grad[i];
  float w_at = r.w[at], m_at = m[at], v_at = v[at];  // all three before any is written
  AdamWElement(g, hyper, r.state->learning_rate * hyper.learning_rate_scale, *corrections, w_at,
               m_at, v_at);
  r.w[at] = w_at;
  m[at] = m_at;
  v[at] = v_at;
}

template <typename Op>
Rows RowsOf(const Op& op) {
  return {.w = op.tables.first.template As<float>(),
          .grad = op.grad.template As<float>(),
          .ids = op.ids.template As<int32_t>(),
          .grad_scale = op.grad_scale ? op.grad_scale.template As<float>() : nullptr,
          .state = StepStateOf(op.state),
          .places = op.samples * op.tables.list.count,
          .width = op.width,
          .learning_rate_scale = op.learning_rate_scale};
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const SgdRows& op) {
  return Kernel{.launch = [op](Stream& stream) {
    const Rows rows = RowsOf(op);
    Launch(stream, ThreadForEach(rows.places * rows.width), SgdRowsKernel, rows, op.tables.list);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const AdamWRows& op) {
  const auto launch = [op](Stream& stream) {
    const Rows rows = RowsOf(op);
    const AdamWHyper hyper = HyperOf(op);
    Launch(stream, ThreadForEach(rows.places * rows.width), AdamWRowsKernel, rows,
           op.m.first.As<float>(), op.v.first.As<float>(), op.tables.list, hyper,
           LaunchCorrections(stream, hyper, rows.state));
  };
  return Kernel{.launch = launch, .scratch_bytes = kCorrectionBytes};
}

}  // namespace trainyard::kernels::cuda
