#include "kernels/ops/activation.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fast_math.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr float kSqrtHalf = 0.70710678118654752f;
constexpr float kInvSqrtTwoPi = 0.39894228040143268f;
constexpr float kTwiceRoot = 1.59576912160573071f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

// Phi(x) by the complement: 1 + erf would lose the lower tail.
__device__ float NormalCdf(float x) { return 0.5f * erfcf(-x * kSqrtHalf); }

// With u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), which keeps the
// lower tail as well.
__device__ float TanhGate(float x) {
  return Reciprocal(1.0f + expf(-kTwiceRoot * x * (1.0f + kCubic * x * x)));
}

struct Relu {
  __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};
struct Relu6 {
  __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x; }
};
struct Gelu {
  __device__ float operator()(float x) const { return x * NormalCdf(x); }
};
struct GeluTanh {
  __device__ float operator()(float x) const { return x * TanhGate(x); }
};

struct ReluGradient {
  __device__ float operator()(float x, float dy) const { return x > 0.0f ? dy : 0.0f; }
};
struct Relu6Gradient {
  __device__ float operator()(float x, float dy) const { return x > 0.0f && x < 6.0f ? dy : 0.0f; }
};
// (x Phi(x))' = Phi(x) + x phi(x)
struct GeluGradient {
  __device__ float operator()(float x, float dy) const {
    return dy * (NormalCdf(x) + x * kInvSqrtTwoPi * expf(-0.5f * x * x));
  }
};
// With s = TanhGate(x) = sigmoid(2 u): (x s)' = s + x s (1 - s) (2 u)'
struct GeluTanhGradient {
  __device__ float operator()(float x, float dy) const {
    const float s = TanhGate(x);
    const float slope = kTwiceRoot * (1.0f + 3.0f * kCubic * x * x);
    return dy * (s + x * s * (1.0f - s) * slope);
  }
};

template <typename F>
absl::StatusOr<Kernel> Forward(const ActivationForward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    const T* x = op.x.As<T>();
    return Kernel{.launch = [x, y = op.y.As<T>(), n = op.n](Stream& stream) {
      LaunchMap(stream, F{}, n, y, x);
    }};
  });
}

template <typename F>
absl::StatusOr<Kernel> Backward(const ActivationBackward& op) {
  return ForElement(op.x.dtype, [&]<typename T>() {
    const T* x = op.x.As<T>();
    const T* dy = op.dy.As<T>();
    return Kernel{.launch = [x, dy, dx = op.dx.As<T>(), n = op.n](Stream& stream) {
      LaunchMap(stream, F{}, n, dx, x, dy);
    }};
  });
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const ActivationForward& op) {
  switch (op.kind) {
    case ActivationKind::kRelu:
      return Forward<Relu>(op);
    case ActivationKind::kGelu:
      return Forward<Gelu>(op);
    case ActivationKind::kGeluTanh:
      return Forward<GeluTanh>(op);
    case ActivationKind::kRelu6:
      return Forward<Relu6>(op);
  }
  return absl::UnimplementedError("cuda activation: unknown kind");
}

absl::StatusOr<Kernel> CudaDevice::Bind(const ActivationBackward& op) {
  switch (op.kind) {
    case ActivationKind::kRelu:
      return Backward<ReluGradient>(op);
    case ActivationKind::kGelu:
      return Backward<GeluGradient>(op);
    case ActivationKind::kGeluTanh:
      return Backward<GeluTanhGradient>(op);
    case ActivationKind::kRelu6:
      return Backward<Relu6Gradient>(op);
  }
  return absl::UnimplementedError("cuda activation backward: unknown kind");
}

}  // namespace trainyard::kernels::cuda
