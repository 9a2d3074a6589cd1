#include "kernels/cpu/vector/loops.h"
#include "kernels/cpu/vector/math.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename T>
void AddRange(const T* a, const T* b, T* y, int64_t n) {
  Map(n, a, b, y, [](VecF u, VecF v) { return u + v; });
}

// NaN passes through, as in PyTorch.
template <typename T>
void Relu(const T* x, T* y, int64_t n) {
  Map(n, x, y, [](VecF v) { return v < 0.0f ? VecF{} : v; });
}

template <typename T>
void ReluBackward(const T* x, const T* dy, T* dx, int64_t n) {
  Map(n, x, dy, dx, [](VecF v, VecF g) { return v > 0.0f ? g : VecF{}; });
}

template <typename T>
void Relu6(const T* x, T* y, int64_t n) {
  Map(n, x, y, [](VecF v) {
    const VecF low = v < 0.0f ? VecF{} : v;
    return low > 6.0f ? Splat(6.0f) : low;
  });
}

template <typename T>
void Relu6Backward(const T* x, const T* dy, T* dx, int64_t n) {
  Map(n, x, dy, dx, [](VecF v, VecF g) {
    const VecF above = v > 0.0f ? g : VecF{};
    return v < 6.0f ? above : VecF{};
  });
}

template <typename T>
void Gelu(const T* x, T* y, int64_t n) {
  Map(n, x, y, [](VecF v) { return v * NormalOf(v).phi; });
}

template <typename T>
void GeluBackward(const T* x, const T* dy, T* dx, int64_t n) {
  Map(n, x, dy, dx, [](VecF v, VecF g) {
    const Normal normal = NormalOf(v);
    return g * (normal.phi + v * normal.bell * 0.398942280401432678f);
  });
}

// With u = sqrt(2/pi) (x + 0.044715 x^3): x/2 (1 + tanh u) = x Sigmoid(2u).
TRAINYARD_INLINE VecF TwiceU(VecF x) {
  constexpr float kTwiceRoot = 1.59576912160573071f;  // 2 sqrt(2/pi)
  return x * kTwiceRoot * (x * x * 0.044715f + 1.0f);
}

template <typename T>
void GeluTanh(const T* x, T* y, int64_t n) {
  Map(n, x, y, [](VecF v) { return v * Sigmoid(TwiceU(v)); });
}

template <typename T>
void GeluTanhBackward(const T* x, const T* dy, T* dx, int64_t n) {
  Map(n, x, dy, dx, [](VecF v, VecF g) {
    constexpr float kTwiceRoot = 1.59576912160573071f;
    const VecF s = Sigmoid(TwiceU(v));
    const VecF slope = (v * v * (3 * 0.044715f) + 1.0f) * kTwiceRoot;
    return g * (s + v * s * (1.0f - s) * slope);
  });
}

void ExpRange(const float* x, float* y, int64_t n) {
  Map(n, x, y, [](VecF v) { return Exp(v); });
}

void LogRange(const float* x, float* y, int64_t n) {
  Map(n, x, y, [](VecF v) { return LogOfPositive(v); });
}

void PhiRange(const float* x, float* y, int64_t n) {
  Map(n, x, y, [](VecF v) { return NormalOf(v).phi; });
}

template <typename T>
void RegisterActivations(ElementLoops<T>& loops) {
  loops.add = AddRange<T>;
  loops.relu = Relu<T>;
  loops.relu_backward = ReluBackward<T>;
  loops.relu6 = Relu6<T>;
  loops.relu6_backward = Relu6Backward<T>;
  loops.gelu = Gelu<T>;
  loops.gelu_backward = GeluBackward<T>;
  loops.gelu_tanh = GeluTanh<T>;
  loops.gelu_tanh_backward = GeluTanhBackward<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterActivations)

}  // namespace trainyard::kernels::TRAINYARD_ISA
