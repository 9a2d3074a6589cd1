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

absl::StatusOr<Kernel> CpuDevice::Prepare(const Cast& op) {
  const bool narrows = op.x.dtype == DType::kF32;
  const absl::Status ok = narrows ? CheckOperands("cast", {{"x", op.x}, {"y", op.y, op.y.dtype}})
                                  : CheckOperands("cast", {{"x", op.x, op.x.dtype}, {"y", op.y}});
  if (!ok.ok()) return ok;
  const DType type = narrows ? op.y.dtype : op.x.dtype;
  return ForElement("cast", type, [&]<typename T>() {
    return narrows ? CastWith(LoopsOf<T>(vectors_).from_f32, threads_, op)
                   : CastWith(LoopsOf<T>(vectors_).to_f32, threads_, op);
  });
}

}  // namespace trainyard::kernels
