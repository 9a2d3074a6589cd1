#include "kernels/ops/cast.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const Cast& op) {
  const bool narrows = op.x.dtype == DType::kF32;
  return ForElement(narrows ? op.y.dtype : op.x.dtype, [&]<typename T>() {
    const ElementLoops<T>& loops = LoopsOf<T>(vectors_);
    return narrows ? Elementwise(threads_, op.n, loops.from_f32, op.x.As<float>(), op.y.As<T>())
                   : Elementwise(threads_, op.n, loops.to_f32, op.x.As<T>(), op.y.As<float>());
  });
}

}  // namespace trainyard::kernels
