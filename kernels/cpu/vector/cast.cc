#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename X, typename Y>
void CastRange(const X* x, Y* y, int64_t n) {
  Copy(n, x, y);
}

template <typename T>
void AddToF32(const float* a, const T* b, float* y, int64_t n) {
  Map(n, a, b, y, [](VecF u, VecF v) { return u + v; });
}

template <typename T>
void RegisterCasts(ElementLoops<T>& loops) {
  loops.add_to_f32 = AddToF32<T>;
  loops.to_f32 = CastRange<T, float>;
  loops.from_f32 = CastRange<float, T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterCasts)

}  // namespace trainyard::kernels::TRAINYARD_ISA
