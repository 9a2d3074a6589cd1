#include "kernels/ops/cast.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

template <typename X, typename Y>
Kernel CastWith(void (*cast)(const X* x, Y* y, int64_t n), int threads, const Cast& op) {
  return Kernel{[=, x = op.x.As<X>(), y = op.y.As<Y>(), n = op.n](Stream&) {
    ParallelRuns(threads, n, kSerialElements,
                 [&](int64_t begin, int64_t end) { cast(x + begin, y + begin, end - begin); });
  }};
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const Cast& op) {
  const bool narrows = op.x.dtype == DType::kF32;
  const DType type = narrows ? op.y.dtype : op.x.dtype;
  return ForElement(type, [&]<typename T>() {
    return narrows ? CastWith(LoopsOf<T>(vectors_).from_f32, threads_, op)
                   : CastWith(LoopsOf<T>(vectors_).to_f32, threads_, op);
  });
}

}  // namespace trainyard::kernels
