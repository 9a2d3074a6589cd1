#include "kernels/ops/interaction.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"
#include "kernels/scratch/interaction.h"

namespace trainyard::kernels {
namespace {

int64_t ProductWidth(int64_t count, int64_t width) { return width + count * (count + 1) / 2; }

// Samples whose products are worth a thread.
int64_t Grain(int64_t count, int64_t width) {
  return std::max<int64_t>(1, 8 * kSerialElements / ((count + 1) * (count + 1) * width));
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const InteractionForward& op) {
  const int64_t each = scratch::InteractionFloats(op.count, op.width);
  return ForElement(op.x.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = scratch::Interaction(op.count, op.width, threads_);
    kernel.launch = [run = LoopsOf<T>(vectors_).interaction, threads = threads_, op,
                     each](Stream& stream) {
      ParallelRuns(threads, op.batch, Grain(op.count, op.width), [&](int64_t begin, int64_t end) {
        run({.x = op.x.As<T>() + begin * op.width,
             .e = op.e.As<T>() + begin * op.count * op.width,
             .y = op.y.As<T>() + begin * ProductWidth(op.count, op.width),
             .samples = end - begin,
             .count = op.count,
             .width = op.width,
             .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * each});
      });
    };
    return kernel;
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const InteractionBackward& op) {
  const int64_t each = scratch::InteractionFloats(op.count, op.width);
  return ForElement(op.x.dtype, [&]<typename T>() {
    Kernel kernel;
    kernel.scratch_bytes = scratch::Interaction(op.count, op.width, threads_);
    kernel.launch = [run = LoopsOf<T>(vectors_).interaction_backward, threads = threads_, op,
                     each](Stream& stream) {
      ParallelRuns(threads, op.batch, Grain(op.count, op.width), [&](int64_t begin, int64_t end) {
        run({.dy = op.dy.As<T>() + begin * ProductWidth(op.count, op.width),
             .x = op.x.As<T>() + begin * op.width,
             .e = op.e.As<T>() + begin * op.count * op.width,
             .dx = OptionalAs<T>(op.dx, begin * op.width),
             .de = OptionalAs<T>(op.de, begin * op.count * op.width),
             .samples = end - begin,
             .count = op.count,
             .width = op.width,
             .scratch = static_cast<float*>(stream.scratch) + omp_get_thread_num() * each});
      });
    };
    return kernel;
  });
}

}  // namespace trainyard::kernels
