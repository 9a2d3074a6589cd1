#include "kernels/ops/optimizer.h"

#include <cmath>

#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fixed_sum.cuh"
#include "kernels/for_element.h"
#include "kernels/step_state.h"

namespace trainyard::kernels::cuda {
namespace {

struct Square {
  template <typename E>
  __device__ double operator()(E x) const {
    const float wide = ToFloat(x);
    return static_cast<double>(wide) * wide;
  }
};

// count, loss and state may be null.
__global__ void ClipScaleKernel(const double* sum, const double* count, const double* loss,
                                float* norm, float* scale, const StepState* state, double rows,
                                float max_norm) {
  const double factor = (count != nullptr && count[0] > 0 ? rows / count[0] : 1.0) /
                        (state == nullptr ? 1.0f : state->loss_scale);
  const float total = static_cast<float>(sqrt(sum[0]) * factor);
  const float ratio = max_norm / (total + 1e-6f);
  norm[0] = total;
  const bool taken =
      isfinite(total) && (loss == nullptr || isfinite(loss[0])) && scale[0] == scale[0];
  scale[0] = taken ? static_cast<float>(factor) * (isinf(max_norm) || ratio > 1.0f ? 1.0f : ratio)
                   : nanf("");
}

// G: type of the gradient, T: type of the copy.
template <typename G, typename T>
struct SgdArguments {
  float* w;  // [n], and so are grad, velocity, copy
  const G* grad;
  float* velocity;          // or null
  const float* grad_scale;  // [1] or null
  const StepState* state;
  T* copy;  // or null
  int64_t n;
  float momentum, weight_decay, learning_rate_scale;
  bool nesterov;
  bool by_packs;
};

// These kernels issue all loads of a step before they check whether it is taken.
template <typename G, typename T>
__global__ void __launch_bounds__(kThreads) SgdKernel(SgdArguments<G, T> a) {
  EachStep(a.n, a.by_packs, [&]<int kCount>(PackSize<kCount>, int64_t at) {
    Pack<float, kCount> w, velocity;
    Pack<G, kCount> grad;
    w.Load(a.w + at);
    grad.Load(a.grad + at);
    if (a.velocity != nullptr) velocity.Load(a.velocity + at);
    const float scale = a.grad_scale != nullptr ? a.grad_scale[0] : 1.0f;
    const float rate = a.state->learning_rate * a.learning_rate_scale;
    const bool moving = a.state->updates > 0;
    if (!IsTaken(a.grad_scale)) return;
    float stepped[kCount], moved[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float g = grad[j] * scale + a.weight_decay * w[j];
      const float v = moving ? a.momentum * velocity[j] + g : g;
      const float step = a.velocity == nullptr ? g : a.nesterov ? g + a.momentum * v : v;
      moved[j] = v;
      stepped[j] = w[j] - rate * step;
    }
    w.Set(stepped);
    w.Store(a.w + at);
    if (a.velocity != nullptr) {
      velocity.Set(moved);
      velocity.Store(a.velocity + at);
    }
    if (a.copy != nullptr) {
      Pack<T, kCount> copy;
      copy.Set(stepped);
      copy.Store(a.copy + at);
    }
  });
}

template <typename G, typename T>
struct AdamWArguments {
  float* w;  // [n], and so are grad, m, v
  const G* grad;
  float* m;
  float* v;
  const float* grad_scale;  // [1] or null
  const StepState* state;
  T* copy;  // [n] or null
  int64_t n;
  AdamWHyper hyper;
  bool by_packs;
};

template <typename G, typename T>
__global__ void __launch_bounds__(kThreads, 4)
    AdamWKernel(AdamWArguments<G, T> a, const AdamWCorrections* corrections) {
  EachStep(a.n, a.by_packs, [&]<int kCount>(PackSize<kCount>, int64_t at) {
    Pack<float, kCount> w, m, v;
    Pack<G, kCount> grad;
    w.Load(a.w + at);
    grad.Load(a.grad + at);
    m.Load(a.m + at);
    v.Load(a.v + at);
    const AdamWCorrections c = *corrections;
    const float scale = a.grad_scale != nullptr ? a.grad_scale[0] : 1.0f;
    const float rate = a.state->learning_rate * a.hyper.learning_rate_scale;
    if (!IsTaken(a.grad_scale)) return;
    float new_w[kCount], new_m[kCount], new_v[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      new_w[j] = w[j], new_m[j] = m[j], new_v[j] = v[j];
      AdamWElement(grad[j] * scale, a.hyper, rate, c, new_w[j], new_m[j], new_v[j]);
    }
    w.Set(new_w);
    w.Store(a.w + at);
    m.Set(new_m);
    m.Store(a.m + at);
    v.Set(new_v);
    v.Store(a.v + at);
    if (a.copy != nullptr) {
      Pack<T, kCount> copy;
      copy.Set(new_w);
      copy.Store(a.copy + at);
    }
  });
}

__global__ void __launch_bounds__(kThreads, 4)
    EmaKernel(float* average, const float* w, const float* grad_scale, const StepState* state,
              int64_t n, double decay, bool warmup, bool by_packs) {
  EachStep(n, by_packs, [&]<int kCount>(PackSize<kCount>, int64_t at) {
    Pack<float, kCount> averages, weights;
    averages.Load(average + at);
    weights.Load(w + at);
    const auto step = static_cast<double>(state->step);
    if (!IsTaken(grad_scale)) return;
    const double kept = warmup ? fmin(decay, (1 + step) / (10 + step)) : decay;
    const float share = static_cast<float>(1 - kept);
    float moved[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      moved[j] = averages[j] + share * (weights[j] - averages[j]);
    }
    averages.Set(moved);
    averages.Store(average + at);
  });
}

// Whether the fp32 operands, the gradient and the copy are aligned to packs.
template <typename G, typename T, typename Arguments>
bool PacksAligned(const Arguments& a, std::initializer_list<const void*> floats) {
  return Aligned(kStepPack * sizeof(float), floats) && Aligned(kStepPack * sizeof(G), {a.grad}) &&
         Aligned(kStepPack * sizeof(T), {a.copy});
}

// prepare.operator()<G, T>() for the types of the gradient and of the copy; without one T is float.
template <typename F>
absl::StatusOr<Kernel> ForGradientAndCopy(const Buffer& grad, const Buffer& copy,
                                          const F& prepare) {
  return ForElement(grad.dtype, [&]<typename G>() {
    return ForElement(copy.dtype,
                      [&]<typename T>() -> Kernel { return prepare.template operator()<G, T>(); });
  });
}

}  // namespace

absl::StatusOr<Kernel> CudaDevice::Bind(const SquaredNorm& op) {
  return ForElement(op.x.dtype, [&]<typename E>() {
    return FixedSum(Square{}, op.x.As<E>(), op.sum.As<double>(), op.n, op.accumulate);
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const ClipScale& op) {
  return Kernel{.launch = [op](Stream& stream) {
    Launch(stream, {.grid = Blocks(1), .block = dim3(1)}, ClipScaleKernel, op.sum.As<double>(),
           OptionalAs<double>(op.count), OptionalAs<double>(op.loss), op.norm.As<float>(),
           op.scale.As<float>(), StepStateOf(op.state), static_cast<double>(op.rows), op.max_norm);
  }};
}

absl::StatusOr<Kernel> CudaDevice::Bind(const SgdStep& op) {
  const bool with_velocity = op.momentum > 0;
  return ForGradientAndCopy(op.grad, op.copy, [&]<typename G, typename T>() {
    SgdArguments<G, T> arguments = {.w = op.w.As<float>(),
                                    .grad = op.grad.As<G>(),
                                    .velocity = with_velocity ? op.velocity.As<float>() : nullptr,
                                    .grad_scale = OptionalAs<float>(op.grad_scale),
                                    .state = StepStateOf(op.state),
                                    .copy = OptionalAs<T>(op.copy),
                                    .n = op.n,
                                    .momentum = op.momentum,
                                    .weight_decay = op.weight_decay,
                                    .learning_rate_scale = op.learning_rate_scale,
                                    .nesterov = op.nesterov};
    arguments.by_packs = PacksAligned<G, T>(arguments, {arguments.w, arguments.velocity});
    return Kernel{.launch = [arguments](Stream& stream) {
      Launch(stream, {.grid = StepBlocks(arguments.n)}, SgdKernel<G, T>, arguments);
    }};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const AdamWStep& op) {
  return ForGradientAndCopy(op.grad, op.copy, [&]<typename G, typename T>() {
    AdamWArguments<G, T> arguments = {.w = op.w.As<float>(),
                                      .grad = op.grad.As<G>(),
                                      .m = op.m.As<float>(),
                                      .v = op.v.As<float>(),
                                      .grad_scale = OptionalAs<float>(op.grad_scale),
                                      .state = StepStateOf(op.state),
                                      .copy = OptionalAs<T>(op.copy),
                                      .n = op.n,
                                      .hyper = HyperOf(op)};
    arguments.by_packs = PacksAligned<G, T>(arguments, {arguments.w, arguments.m, arguments.v});
    const auto launch = [arguments](Stream& stream) {
      Launch(stream, {.grid = StepBlocks(arguments.n)}, AdamWKernel<G, T>, arguments,
             LaunchCorrections(stream, arguments.hyper, arguments.state));
    };
    return Kernel{.launch = launch, .scratch_bytes = kCorrectionBytes};
  });
}

absl::StatusOr<Kernel> CudaDevice::Bind(const EmaStep& op) {
  return Kernel{.launch = [op](Stream& stream) {
    float* average = op.average.As<float>();
    const float* w = op.w.As<float>();
    Launch(stream, {.grid = StepBlocks(op.n)}, EmaKernel, average, w,
           OptionalAs<float>(op.grad_scale), StepStateOf(op.state), op.n, op.decay, op.warmup,
           Aligned(kPackBytes, {average, w}));
  }};
}

}  // namespace trainyard::kernels::cuda
