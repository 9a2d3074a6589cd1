#pragma once

#include <cstdint>

namespace trainyard::kernels::scratch {

inline constexpr int64_t kFloat = sizeof(float);
inline constexpr int64_t kDouble = sizeof(double);
inline constexpr int64_t kMiB = int64_t{1} << 20;

constexpr int64_t Ceil(int64_t n, int64_t each) { return (n + each - 1) / each; }
constexpr int64_t RoundUp(int64_t n, int64_t each) { return Ceil(n, each) * each; }

}  // namespace trainyard::kernels::scratch
