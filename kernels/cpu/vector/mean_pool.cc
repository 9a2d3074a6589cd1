#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename T>
void MeanPool(const T* x, int64_t pixels, int64_t channels, T* y) {
  const float scale = 1.0f / static_cast<float>(pixels);
  for (int64_t c = 0; c < channels; c += kLanes) {
    const int64_t n = channels - c < kLanes ? channels - c : kLanes;
    VecF sum{};
    for (int64_t p = 0; p < pixels; ++p) sum += LoadUpTo(x + p * channels + c, n);
    StoreUpTo(y + c, sum * scale, n);
  }
}

template <typename T>
void MeanPoolBackward(const T* dy, int64_t pixels, int64_t channels, T* dx) {
  const float scale = 1.0f / static_cast<float>(pixels);
  Map(channels, dy, dx, [&](VecF v) { return v * scale; });
  for (int64_t p = 1; p < pixels; ++p) {
    __builtin_memcpy(dx + p * channels, dx, sizeof(T) * channels);
  }
}

template <typename T>
void RegisterMeanPool(ElementLoops<T>& loops) {
  loops.mean_pool = MeanPool<T>;
  loops.mean_pool_backward = MeanPoolBackward<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterMeanPool)

}  // namespace trainyard::kernels::TRAINYARD_ISA
