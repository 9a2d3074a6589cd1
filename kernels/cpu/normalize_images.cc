#include "kernels/ops/normalize_images.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

// The normalised value of each byte of each channel: [channels][256].
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

// Pixels of a row that are cropped at a time.
constexpr int64_t kPiece = 1024;

// Writes the bytes of pixels [begin, begin + count) of row r of the crop of `image`.
void CropRow(const NormalizeImages& op, const uint8_t* image, const int32_t* place, int64_t r,
             int64_t begin, int64_t count, uint8_t* bytes) {
  const int64_t row = r + place[0], dx = place[1], channels = op.channels;
  const bool mirrored = place[2] != 0;
  if (row < 0 || row >= op.height) {
    std::fill_n(bytes, count * channels, uint8_t{0});
    return;
  }
  const uint8_t* const from = image + row * op.width * channels;
  for (int64_t c = begin; c < begin + count; ++c, bytes += channels) {
    const int64_t col = (mirrored ? op.width - 1 - c : c) + dx;
    for (int64_t i = 0; i < channels; ++i) {
      bytes[i] = col >= 0 && col < op.width ? from[col * channels + i] : uint8_t{0};
    }
  }
}

template <typename T>
Kernel CropAndNormalize(const ElementLoops<T>& loops, const NormalizeImages& op, int threads) {
  return Kernel{[run = loops.normalize_images, table = TableOf(loops, op), op, threads](Stream&) {
    const int64_t row_bytes = op.width * op.channels;
    ParallelFor(threads, op.pixels / op.width, GrainOf(row_bytes), [&](int64_t row) {
      uint8_t bytes[kPiece * NormalizeImages::kMostChannels];
      const int64_t image = row / op.height, r = row % op.height;
      for (int64_t c = 0; c < op.width; c += kPiece) {
        const int64_t count = std::min(kPiece, op.width - c);
        CropRow(op, op.x.As<uint8_t>() + image * op.height * row_bytes,
                op.places.As<int32_t>() + image * NormalizeImages::kPlace, r, c, count, bytes);
        run(bytes, table.data(), op.channels, op.y.As<T>() + row * row_bytes + c * op.channels,
            count);
      }
    });
  }};
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const NormalizeImages& op) {
  return ForElement(op.y.dtype, [&]<typename T>() {
    const ElementLoops<T>& loops = LoopsOf<T>(vectors_);
    if (op.places) return CropAndNormalize(loops, op, threads_);
    return Kernel{[run = loops.normalize_images, table = TableOf(loops, op), threads = threads_,
                   x = op.x.As<uint8_t>(), y = op.y.As<T>(), pixels = op.pixels,
                   channels = op.channels](Stream&) {
      ParallelRuns(threads, pixels, GrainOf(channels), [&](int64_t begin, int64_t end) {
        run(x + begin * channels, table.data(), channels, y + begin * channels, end - begin);
      });
    }};
  });
}

}  // namespace trainyard::kernels
