#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Below 0.625 a polynomial for (tanh(u) / u - 1) / u^2, fitted to 2e-8 of tanh, above it
// (1 - e) / (1 + e) with e = exp(-2 |u|), whose digits cancel near 0.
TRAINYARD_INLINE VecF Tanh(VecF u) {
  const VecF size = Abs(u), z = u * u;
  VecF p = z * -6.104945671e-3f + 2.100363933e-2f;
  p = p * z - 5.385249853e-2f;
  p = p * z + 1.333278269e-1f;
  p = p * z - 3.333332837e-1f;
  const VecF e = ExpOfNegative(size * -2.0f);
  const VecF large = (1.0f - e) / (1.0f + e);
  return size < 0.625f ? p * z * u + u : (u < 0.0f ? -large : large);
}

template <typename T>
void SoftCap(const T* x, float cap, T* y, int64_t n) {
  Map(n, x, y, [=](VecF v) { return Tanh(v / cap) * cap; });
}

template <typename T>
void SoftCapBackwardRange(const T* y, const T* dy, float cap, T* dx, int64_t n) {
  Map(n, y, dy, dx, [=](VecF v, VecF g) {
    const VecF tanh = v / cap;
    return g * (1.0f - tanh * tanh);
  });
}

template <typename T>
void RegisterSoftCap(ElementLoops<T>& loops) {
  loops.soft_cap = SoftCap<T>;
  loops.soft_cap_backward = SoftCapBackwardRange<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterSoftCap)

}  // namespace trainyard::kernels::TRAINYARD_ISA
