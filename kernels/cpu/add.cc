#include "kernels/ops/add.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"

namespace trainyard::kernels {

absl::StatusOr<Kernel> CpuDevice::Bind(const Add& op) {
  return ForElement(op.b.dtype, [&]<typename T>() {
    const ElementLoops<T>& loops = LoopsOf<T>(vectors_);
    const T* const b = op.b.As<T>();
    if (op.a.dtype == op.b.dtype) {
      return Elementwise(threads_, op.n, loops.add, op.a.As<T>(), b, op.y.As<T>());
    }
    return Elementwise(threads_, op.n, loops.add_to_f32, op.a.As<float>(), b, op.y.As<float>());
  });
}

}  // namespace trainyard::kernels
