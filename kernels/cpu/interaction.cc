#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename Op>
absl::Status CheckShape(const char* name, const Op& op) {
  return CheckSizes(name, {{"batch", op.batch}, {"count", op.count}, {"width", op.width}});
}

int64_t ProductWidth(int64_t count, int64_t width) { return width + count * (count + 1) / 2; }

// Samples whose products are worth a thread.
int64_t Grain(int64_t count, int64_t width) {
  return std::max<int64_t>(1, 8 * kSerialElements / ((count + 1) * (count + 1) * width));
}

}  // namespace

// Features, their transpose (or gradient) and their products, padded to vectors of 16
// (vector/interaction.cc).
int64_t InteractionScratchFloats(int64_t count, int64_t width) {
  const int64_t features = count + 1;
  const int64_t padded_features = (features + 15) / 16 * 16, padded_width = (width + 15) / 16 * 16;
  return features * padded_width + padded_width * padded_features + features * padded_features;
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const InteractionForward& op) {
  absl::Status ok = CheckOperands("interaction", {{"x", op.x}, {"e", op.e}, {"y", op.y}});
  if (ok.ok()) ok = CheckShape("interaction", op);
  if (!ok.ok()) return ok;
  const int64_t scratch = InteractionScratchFloats(op.count, op.width);
  Kernel kernel;
  kernel.scratch_bytes = threads_ * scratch * sizeof(float);
  kernel.launch = [run = vectors_.f32.interaction, threads = threads_, op,
                   scratch](Stream& stream) {
    ParallelRuns(threads, op.batch, Grain(op.count, op.width), [&](int64_t begin, int64_t end) {
      run({.x = op.x.As<float>() + begin * op.width,
           .e = op.e.As<float>() + begin * op.count * op.width,
           .y = op.y.As<float>() + begin * ProductWidth(op.count, op.width),
           .samples = end - begin,
           .count = op.count,
           .width = op.width,
           .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * scratch});
    });
  };
  return kernel;
}

absl::StatusOr<Kernel> CpuDevice::Prepare(const InteractionBackward& op) {
  absl::Status ok = CheckOperands("interaction backward", {{"dy", op.dy},
                                                           {"x", op.x},
                                                           {"e", op.e},
                                                           {"dx", op.dx, DType::kF32, true},
                                                           {"de", op.de, DType::kF32, true}});
  if (ok.ok()) ok = CheckShape("interaction backward", op);
  if (!ok.ok()) return ok;
  const int64_t scratch = InteractionScratchFloats(op.count, op.width);
  Kernel kernel;
  kernel.scratch_bytes = threads_ * scratch * sizeof(float);
  kernel.launch = [run = vectors_.f32.interaction_backward, threads = threads_, op,
                   scratch](Stream& stream) {
    ParallelRuns(threads, op.batch, Grain(op.count, op.width), [&](int64_t begin, int64_t end) {
      run({.dy = op.dy.As<float>() + begin * ProductWidth(op.count, op.width),
           .x = op.x.As<float>() + begin * op.width,
           .e = op.e.As<float>() + begin * op.count * op.width,
           .dx = op.dx ? op.dx.As<float>() + begin * op.width : nullptr,
           .de = op.de ? op.de.As<float>() + begin * op.count * op.width : nullptr,
           .samples = end - begin,
           .count = op.count,
           .width = op.width,
           .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * scratch});
    });
  };
  return kernel;
}

}  // namespace trainyard::kernels
