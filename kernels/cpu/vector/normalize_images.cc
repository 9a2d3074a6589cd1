#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <int kChannels, typename T>
TRAINYARD_INLINE void LookUp(const uint8_t* __restrict x, const T* __restrict table,
                             T* __restrict y, int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p, x += kChannels, y += kChannels) {
    for (int c = 0; c < kChannels; ++c) y[c] = table[c * kValuesOfAByte + x[c]];
  }
}

// A look-up costs a load and a store; arithmetic that gives the same bits would divide doubles.
template <typename T>
void NormalizeImagesOf(const uint8_t* x, const T* table, int64_t channels, T* y, int64_t pixels) {
  if (channels == 1) return LookUp<1>(x, table, y, pixels);
  if (channels == 2) return LookUp<2>(x, table, y, pixels);
  LookUp<3>(x, table, y, pixels);
}

template <typename T>
void RegisterNormalizeImages(ElementLoops<T>& loops) {
  loops.normalize_images = NormalizeImagesOf<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterNormalizeImages)

}  // namespace trainyard::kernels::TRAINYARD_ISA
