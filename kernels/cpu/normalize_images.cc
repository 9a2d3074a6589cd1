#include "kernels/ops/normalize_images.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

// [channels][256]
template <typename T>
std::vector<T> TableOf(const ElementLoops<T>& loops, const NormalizeImages& op) {
  const auto size = static_cast<size_t>(op.channels) * NormalizeImages::kBytes;
  std::vector<float> wide;
  wide.reserve(size);
  for (int64_t c = 0; c < op.channels; ++c) {
    for (int v = 0; v < NormalizeImages::kBytes; ++v) wide.push_back(op.ValueOf(c, v));
  }
  std::vector<T> table(size);
  loops.from_f32(wide.data(), table.data(), static_cast<int64_t>(size));
  return table;
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Prepare(const NormalizeImages& op) {
  constexpr const char* kName = "normalize_images";
  absl::Status ok = CheckOperands(kName, {{"x", op.x, DType::kU8}, {"y", op.y, op.y.dtype}});
  if (ok.ok()) {
    ok = CheckSizes(kName, {{"pixels", op.pixels},
                            {"channels", op.channels},
                            {"4 - channels", NormalizeImages::kMostChannels + 1 - op.channels}});
  }
  if (!ok.ok()) return ok;
  return ForElement(kName, op.y.dtype, [&]<typename T>() {
    const ElementLoops<T>& loops = LoopsOf<T>(vectors_);
    return Kernel{[run = loops.normalize_images, table = TableOf(loops, op), threads = threads_,
                   x = op.x.As<uint8_t>(), y = op.y.As<T>(), pixels = op.pixels,
                   channels = op.channels](Stream&) {
      ParallelRuns(threads, pixels, std::max<int64_t>(1, kSerialElements / channels),
                   [&](int64_t begin, int64_t end) {
                     run(x + begin * channels, table.data(), channels, y + begin * channels,
                         end - begin);
                   });
    }};
  });
}

}  // namespace trainyard::kernels
