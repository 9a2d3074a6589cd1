#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Prepare(const SwiGluForward& op) {
  absl::Status ok = CheckOperands("swiglu", {{"x", op.x}, {"y", op.y}});
  if (ok.ok()) ok = CheckSizes("swiglu", {{"rows", op.rows}, {"cols", op.cols}});
  if (!ok.ok()) return ok;
  return Kernel{[run = vectors_.f32.swiglu, threads = threads_, op](Stream&) {
    const int64_t grain = std::max<int64_t>(1, kSerialElements / op.cols);
    ParallelRuns(threads, op.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* gate = op.x.As<float>() + 2 * r * op.cols;
        run(gate, gate + op.cols, op.y.As<float>() + r * op.cols, op.cols);
      }
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const SwiGluBackward& op) {
  absl::Status ok = CheckOperands("swiglu backward", {{"x", op.x}, {"dy", op.dy}, {"dx", op.dx}});
  if (ok.ok()) ok = CheckSizes("swiglu backward", {{"rows", op.rows}, {"cols", op.cols}});
  if (!ok.ok()) return ok;
  return Kernel{[run = vectors_.f32.swiglu_backward, threads = threads_, op](Stream&) {
    const int64_t grain = std::max<int64_t>(1, kSerialElements / op.cols);
    ParallelRuns(threads, op.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* gate = op.x.As<float>() + 2 * r * op.cols;
        float* dgate = op.dx.As<float>() + 2 * r * op.cols;
        run(gate, gate + op.cols, op.dy.As<float>() + r * op.cols, dgate, dgate + op.cols, op.cols);
      }
    });
  }};
}

}  // namespace trainyard::kernels
