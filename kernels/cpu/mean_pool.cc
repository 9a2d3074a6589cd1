#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename Op>
absl::Status CheckShape(const Op& op) {
  return CheckSizes("mean_pool",
                    {{"batch", op.batch}, {"pixels", op.pixels}, {"channels", op.channels}});
}

template <typename Op>
int64_t GrainOf(const Op& op) {
  return std::max<int64_t>(1, kSerialElements / (op.pixels * op.channels));
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const MeanPoolForward& op) {
  absl::Status ok = CheckOperands("mean_pool", {{"x", op.x}, {"y", op.y}});
  if (ok.ok()) ok = CheckShape(op);
  if (!ok.ok()) return ok;
  return Kernel{[column_sum = vectors_.f32.column_sum, threads = threads_, op](Stream&) {
    const float scale = 1.0f / static_cast<float>(op.pixels);
    ParallelRuns(threads, op.batch, GrainOf(op), [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) {
        float* y = op.y.As<float>() + image * op.channels;
        column_sum(op.x.As<float>() + image * op.pixels * op.channels, op.pixels, op.channels,
                   op.channels, y);
        for (int64_t c = 0; c < op.channels; ++c) y[c] *= scale;
      }
    });
  }};
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const MeanPoolBackward& op) {
  absl::Status ok = CheckOperands("mean_pool backward", {{"dy", op.dy}, {"dx", op.dx}});
  if (ok.ok()) ok = CheckShape(op);
  if (!ok.ok()) return ok;
  return Kernel{[threads = threads_, op](Stream&) {
    const float scale = 1.0f / static_cast<float>(op.pixels);
    ParallelRuns(threads, op.batch, GrainOf(op), [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image) {
        const float* dy = op.dy.As<float>() + image * op.channels;
        float* dx = op.dx.As<float>() + image * op.pixels * op.channels;
        for (int64_t c = 0; c < op.channels; ++c) dx[c] = dy[c] * scale;
        for (int64_t p = 1; p < op.pixels; ++p) {
          std::copy(dx, dx + op.channels, dx + p * op.channels);
        }
      }
    });
  }};
}

}  // namespace trainyard::kernels
