#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

TRAINYARD_INLINE void RotatePairs(VecF low, VecF high, VecF cos, VecF sin, VecF& y_low,
                                  VecF& y_high) {
  y_low = low * cos - high * sin;
  y_high = high * cos + low * sin;
}

template <typename T>
void RotateHead(const T* x, const float* cos, const float* sin, float turn, T* y, int64_t half) {
  VecF low, high;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    RotatePairs(Load(x + i), Load(x + half + i), Load(cos + i), turn * Load(sin + i), low, high);
    Store(y + i, low);
    Store(y + half + i, high);
  }
  if (i == half) return;
  const int64_t n = half - i;
  RotatePairs(LoadPart(x + i, n), LoadPart(x + half + i, n), LoadPart(cos + i, n),
              turn * LoadPart(sin + i, n), low, high);
  StorePart(y + i, low, n);
  StorePart(y + half + i, high, n);
}

template <typename T>
void RegisterRotary(ElementLoops<T>& loops) {
  loops.rotate = RotateHead<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterRotary)

}  // namespace trainyard::kernels::TRAINYARD_ISA
