#pragma once

// Normally distributed numbers in double precision, by steps that every device rounds alike: IEEE
// 754 additions, products, quotients and square roots in exactly this order, none of them fused.
// Files that include this are compiled without fused multiply-add (-ffp-contract=off, -fmad=false).
//
// The templates take one number at a time (D double, U uint64_t) or vectors of GCC's extension.

#include <cstdint>

#if defined(__CUDACC__)
#define TY_ALWAYS_INLINE static __host__ __device__ __forceinline__
#else
#define TY_ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

namespace trainyard::kernels {

template <typename To, typename From>
TY_ALWAYS_INLINE To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// Converts an integer n below 2^52 to double: the last bits of 2^52 + n are n.
template <typename D, typename U>
TY_ALWAYS_INLINE D Exact(U n) {
  return BitsAs<D>(n | 0x4330000000000000u) - 0x1p52;
}

// A uniform number in (0, 1] from the 53 high bits of `bits`.
template <typename D, typename U>
TY_ALWAYS_INLINE D OpenUniform(U bits) {
  const D whole = Exact<D, U>(bits >> 43) * 0x1p32 + Exact<D, U>(bits >> 11 & 0xffffffffu);
  return (whole + 0.5) * 0x1p-53;
}

// log x for x > 0 that is not denormal: x = 2^e m, m in (1/sqrt 2, sqrt 2], and
//   log m = 2 artanh((m - 1) / (m + 1))
// by its power series, up to the last term that a double can tell.
template <typename D, typename U>
TY_ALWAYS_INLINE D Log(D x) {
  constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33;
  const U bits = BitsAs<U>(x);
  const D m = BitsAs<D>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);  // in [1, 2)
  const D e = Exact<D, U>(bits >> 52) - 1023.0;
  const auto large = m > 1.4142135623730951;
  const D exponent = large ? e + 1.0 : e;
  const D mantissa = large ? m * 0.5 : m;
  const D s = (mantissa - 1.0) / (mantissa + 1.0), z = s * s;
  D series = z * (2.0 / 21) + 2.0 / 19;
  series = z * series + 2.0 / 17;
  series = z * series + 2.0 / 15;
  series = z * series + 2.0 / 13;
  series = z * series + 2.0 / 11;
  series = z * series + 2.0 / 9;
  series = z * series + 2.0 / 7;
  series = z * series + 2.0 / 5;
  series = z * series + 2.0 / 3;
  const D log_m = s * 2.0 + s * z * series;
  return exponent * kLog2High + (exponent * kLog2Low + log_m);
}

// cos and sin of 2 pi x for x in [0, 1], by power series in the angle from the nearest quarter
// turn.
template <typename D, typename U>
TY_ALWAYS_INLINE void CosSinOfTurns(D x, D& cosine, D& sine) {
  constexpr double kHalfPi = 1.5707963267948966;
  constexpr double kRound = 0x1.8p52;
  const D quarters = x * 4.0;
  const D shifted = quarters + kRound;
  const U quarter = BitsAs<U>(shifted);  // the quarter modulo 4 in the last two bits
  const D angle = (quarters - (shifted - kRound)) * kHalfPi, z = angle * angle;
  D s = z * (1.0 / 355687428096000) - 1.0 / 1307674368000;
  s = z * s + 1.0 / 6227020800;
  s = z * s - 1.0 / 39916800;
  s = z * s + 1.0 / 362880;
  s = z * s - 1.0 / 5040;
  s = z * s + 1.0 / 120;
  s = z * s - 1.0 / 6;
  s = angle + angle * z * s;
  D c = z * (1.0 / 20922789888000) - 1.0 / 87178291200;
  c = z * c + 1.0 / 479001600;
  c = z * c - 1.0 / 3628800;
  c = z * c + 1.0 / 40320;
  c = z * c - 1.0 / 720;
  c = z * c + 1.0 / 24;
  c = z * c - 0.5;
  c = z * c + 1.0;
  const auto odd = (quarter & 1) != 0;
  const D along = odd ? s : c, across = odd ? c : s;
  cosine = ((quarter + 1) & 2) != 0 ? -along : along;
  sine = (quarter & 2) != 0 ? -across : across;
}

// Two draws of 64 bits give two independent normal numbers (Box & Muller 1958):
//   sqrt(square) * cosine and sqrt(square) * sine
template <typename D, typename U>
struct NormalPair {
  D square, cosine, sine;
};
template <typename D, typename U>
TY_ALWAYS_INLINE NormalPair<D, U> NormalPairOf(U a, U b) {
  NormalPair<D, U> pair;
  pair.square = Log<D, U>(OpenUniform<D, U>(a)) * -2.0;
  CosSinOfTurns<D, U>(OpenUniform<D, U>(b), pair.cosine, pair.sine);
  return pair;
}

}  // namespace trainyard::kernels
