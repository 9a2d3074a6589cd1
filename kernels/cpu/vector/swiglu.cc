#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename T>
void SwiGlu(const T* gate, const T* up, T* y, int64_t n) {
  Map(n, gate, up, y, [](VecF g, VecF u) { return g * Sigmoid(g) * u; });
}

// With s = Sigmoid(g): dup = dy g s,  dgate = dy u (s + g s (1 - s))
TRAINYARD_INLINE void Gradient(VecF g, VecF u, VecF dy, VecF& dg, VecF& du) {
  const VecF s = Sigmoid(g);
  du = dy * g * s;
  dg = dy * u * s * (1.0f + g * (1.0f - s));
}

template <typename T>
void SwiGluBackwardRow(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n) {
  VecF dg, du;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Gradient(Load(gate + i), Load(up + i), Load(dy + i), dg, du);
    Store(dgate + i, dg);
    Store(dup + i, du);
  }
  if (i == n) return;
  Gradient(LoadPart(gate + i, n - i), LoadPart(up + i, n - i), LoadPart(dy + i, n - i), dg, du);
  StorePart(dgate + i, dg, n - i);
  StorePart(dup + i, du, n - i);
}

template <typename T>
void RegisterSwiGlu(ElementLoops<T>& loops) {
  loops.swiglu = SwiGlu<T>;
  loops.swiglu_backward = SwiGluBackwardRow<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterSwiGlu)

}  // namespace trainyard::kernels::TRAINYARD_ISA
