#include "kernels/cuda/peak.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace trainyard::kernels::cuda {
namespace {

struct Promise {
  absl::string_view name;  // part of what the GPU calls itself
  double narrow, wide;     // 1e12 per second: dense products of 16 bits, fp32 without TF32
};

// Longer names before those that they contain.
constexpr Promise kPromises[] = {
    {"B200", 2250, 75},      {"H200", 989, 67},      {"H100 PCIe", 756, 51}, {"H100 NVL", 835, 60},
    {"H100", 989, 67},       {"A100", 312, 19.5},    {"A800", 312, 19.5},    {"H800", 989, 67},
    {"L40S", 362, 91.6},     {"L40", 181, 90.5},     {"L4", 121, 30.3},      {"A40", 149.7, 37.4},
    {"A30", 165, 10.3},      {"A10G", 70, 35},       {"A10", 125, 31.2},     {"A6000", 154.8, 38.7},
    {"RTX 4090", 165, 82.6}, {"RTX 3090", 71, 35.6},
};

}  // namespace

double PeakFlops(absl::string_view gpu, DType type) {
  // A part of a GPU, or a smaller one of the same name.
  if (absl::StrContains(gpu, "MIG") || absl::StrContains(gpu, "Laptop")) return 0;
  for (const Promise& promise : kPromises) {
    const size_t at = gpu.find(promise.name);
    if (at == absl::string_view::npos) continue;
    const absl::string_view rest = gpu.substr(at + promise.name.size());
    if (!rest.empty() && absl::ascii_isdigit(rest[0])) continue;  // an A1000 is no A100
    return 1e12 * (type == DType::kF32 ? promise.wide : promise.narrow);
  }
  return 0;
}

}  // namespace trainyard::kernels::cuda
