#pragma once

// Elementary functions on vectors, accurate to a few units in the last place (tests/unit/kernels
// measures them against the C library in double precision).

#include "kernels/cpu/vector/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA {

// Cephes expf (Moshier): x = k ln 2 + r, polynomial of degree 5 for (e^r - 1 - r) / r^2. Results
// below the smallest normal number are 0, so that softmax never meets slow denormals. NaN stays
// NaN.
TRAINYARD_INLINE VecF Exp(VecF x) {
  constexpr float kLowest = -87.33654f;
  const VecI vanishes = x < kLowest;
  x = vanishes ? Splat(kLowest) : x;
  x = x > 89.0f ? Splat(89.0f) : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const VecF shifted = x * 1.44269504088896341f + 12582912.0f;
  const VecI k = reinterpret_cast<VecI>(shifted) - 0x4b400000;
  const VecF n = shifted - 12582912.0f;
  VecF r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  VecF p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  // 2^k in two halves, because k reaches 128.
  const VecI half = k >> 1;
  const VecF low = reinterpret_cast<VecF>((half + 127) << 23);
  const VecF high = reinterpret_cast<VecF>((k - half + 127) << 23);
  p = p * low * high;
  return vanishes ? VecF{} : p;
}

// Cephes logf, for finite normal x > 0 (sums of exponentials with the largest taken out are in
// [1, n]); NaN stays NaN, infinity is not preserved.
TRAINYARD_INLINE VecF LogOfPositive(VecF x) {
  const VecI nan = x != x;
  const VecI bits = reinterpret_cast<VecI>(x);
  VecI exponent = ((bits >> 23) & 0xff) - 126;
  VecF m = reinterpret_cast<VecF>((bits & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
  const VecI small = m < 0.707106781186547524f;
  exponent += small;  // true is -1
  m = small ? m + m - 1.0f : m - 1.0f;
  const VecF e = __builtin_convertvector(exponent, VecF);
  const VecF z = m * m;
  VecF y = m * 7.0376836292e-2f - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  y = y * m * z;
  y = y - e * 2.12194440e-4f;
  y = y - z * 0.5f;
  const VecF result = m + y + e * 0.693359375f;
  return nan ? x : result;
}

// e^x for x <= 0, in fewer steps; the same polynomial. NaN stays NaN.
TRAINYARD_INLINE VecF ExpOfNegative(VecF x) {
  constexpr float kLowest = -87.33654f;
  const VecI vanishes = x < kLowest;
  x = vanishes ? Splat(kLowest) : x;
  const VecF shifted = x * 1.44269504088896341f + 12582912.0f;
  const VecF n = shifted - 12582912.0f;
  VecF r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  VecF p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  // The left shift drops what lies above the exponent's 8 bits.
  const VecF power = reinterpret_cast<VecF>((reinterpret_cast<VecI>(shifted) + 127) << 23);
  return vanishes ? VecF{} : p * power;
}

// The distribution function of the standard normal, and e^(-x^2/2), which its density shares:
//   Phi(-|x|) = e^(-x^2/2) P(q), q = 1 / (1 + 0.3 |x|), P of degree 8
// the form of Abramowitz & Stegun 7.1.26, fitted anew for relative error (6e-8 before rounding), so
// that the tail keeps its digits too.
struct Normal {
  VecF phi, bell;
};

TRAINYARD_INLINE Normal NormalOf(VecF x) {
  const VecF bell = ExpOfNegative(x * x * -0.5f);
  const VecF q = 1.0f / (Abs(x) * 0.3f + 1.0f);
  VecF p = q * 3.827156499e-2f - 1.686460674e-1f;
  p = p * q + 2.275828570e-1f;
  p = p * q - 7.527062297e-2f;
  p = p * q + 1.416789293e-1f;
  p = p * q + 9.504986554e-2f;
  p = p * q + 1.218261793e-1f;
  p = p * q + 1.195009574e-1f;
  p = p * q + 6.385164397e-6f;
  const VecF tail = bell * p;
  return {x < 0.0f ? tail : 1.0f - tail, bell};
}

// 1 / (1 + e^-x); tanh(u) = 2 Sigmoid(2u) - 1.
TRAINYARD_INLINE VecF Sigmoid(VecF x) {
  const VecF e = ExpOfNegative(-Abs(x));
  return (x < 0.0f ? e : Splat(1.0f)) / (1.0f + e);
}

}  // namespace trainyard::kernels::TRAINYARD_ISA
