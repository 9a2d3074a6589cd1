#include "tests/reference/elementwise.h"

#include <cmath>

#include "kernels/random.h"

namespace trainyard::reference {

using kernels::ActivationKind;

double Activation(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kRelu:
      return x > 0 ? x : 0;
    case ActivationKind::kRelu6:
      return x > 6 ? 6 : x > 0 ? x : 0;
    case ActivationKind::kGelu:
      return x * 0.5 * std::erfc(-x * M_SQRT1_2);
    case ActivationKind::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  return NAN;
}

double ActivationSlope(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kRelu:
      return x > 0 ? 1 : 0;
    case ActivationKind::kRelu6:
      return x > 0 && x < 6 ? 1 : 0;
    case ActivationKind::kGelu:
      return 0.5 * std::erfc(-x * M_SQRT1_2) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case ActivationKind::kGeluTanh: {
      const double root = std::sqrt(2 / M_PI);
      const double t = std::tanh(root * (x + 0.044715 * x * x * x));
      return (1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
    }
  }
  return NAN;
}

Vec DropoutKeep(uint64_t seed, uint32_t stream, int64_t step, int64_t first_sample, int64_t samples,
                int64_t per_sample, float p) {
  Vec keep;
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t i = 0; i < per_sample; ++i) {
      const kernels::Random4 draw =
          kernels::StepRandom(seed, stream, step, first_sample + s, i / 4);
      keep.push_back(kernels::UnitUniform(draw.v[i % 4]) >= p ? 1 : 0);
    }
  }
  return keep;
}

Vec Normal(uint64_t seed, uint64_t stream, int64_t n, double std) {
  const auto uniform = [](uint64_t high, uint64_t low) {
    return (static_cast<double>((high << 32 | low) >> 11) + 0.5) * 0x1p-53;
  };
  Vec z(n);
  for (int64_t i = 0; i < n; ++i) {
    const kernels::Random4 r =
        kernels::Philox4x32(seed, static_cast<uint32_t>(i / 2), 0, static_cast<uint32_t>(stream),
                            static_cast<uint32_t>(stream >> 32));
    const double angle = 2 * M_PI * uniform(r.v[2], r.v[3]);
    z[i] = std * std::sqrt(-2 * std::log(uniform(r.v[0], r.v[1]))) *
           (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
  return z;
}

}  // namespace trainyard::reference
