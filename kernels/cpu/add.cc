#include "kernels/ops/add.h"

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

// A, the type of a and y, is T or float.
template <typename T, typename A>
Kernel AddWith(void (*add)(const A* a, const T* b, A* y, int64_t n), int threads, const Add& op) {
  return Kernel{[=, a = op.a.As<A>(), b = op.b.As<T>(), y = op.y.As<A>(), n = op.n](Stream&) {
    ParallelRuns(threads, n, kSerialElements, [&](int64_t begin, int64_t end) {
      add(a + begin, b + begin, y + begin, end - begin);
    });
  }};
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const Add& op) {
  const DType type = op.b.dtype;
  const bool mixed = op.a.dtype != type;
  return ForElement(type, [&]<typename T>() {
    return mixed ? AddWith(LoopsOf<T>(vectors_).add_to_f32, threads_, op)
                 : AddWith(LoopsOf<T>(vectors_).add, threads_, op);
  });
}

}  // namespace trainyard::kernels
