#include "kernels/ops/add_parts.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {
namespace {

constexpr int64_t kSummed = 512;  // elements that are summed at once
constexpr int kDeepest = 8;       // sums that wait: one for each bit of the number of parts
static_assert(int64_t{1} << (kDeepest - 1) >= TableList::kMost);

// Adds up `n` elements, at most kSummed, of each part, `begin` from its start. Two sums of as many
// parts each are added as soon as both are there; those that are left are added from the last on.
template <typename T>
const float* AddUp(const ElementLoops<T>& loops, decltype(ElementLoops<float>::add) add,
                   const Tables& parts, int64_t begin, int64_t n,
                   float (&sums)[kDeepest][kSummed]) {
  int waiting = 0;
  for (int64_t part = 0; part < parts.list.count; ++part) {
    loops.to_f32(parts.At(part).As<T>() + begin, sums[waiting++], n);
    for (int64_t pairs = part + 1; pairs % 2 == 0; pairs /= 2, --waiting) {
      add(sums[waiting - 2], sums[waiting - 1], sums[waiting - 2], n);
    }
  }
  for (; waiting > 1; --waiting) {
    add(sums[waiting - 2], sums[waiting - 1], sums[waiting - 2], n);
  }
  return sums[0];
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const AddParts& op) {
  return ForElement(op.y.dtype, [&]<typename T>() {
    return Kernel{
        [&loops = LoopsOf<T>(vectors_), add = vectors_.f32.add, threads = threads_, op](Stream&) {
          const float* const bias = OptionalAs<float>(op.bias);
          T* const y = op.y.As<T>();
          const int64_t grain = std::max<int64_t>(1, kSerialElements / op.cols);
          ParallelRuns(threads, op.rows, grain, [&](int64_t first, int64_t last) {
            float sums[kDeepest][kSummed];
            for (int64_t row = first; row < last; ++row) {
              for (int64_t col = 0; col < op.cols; col += kSummed) {
                const int64_t n = std::min(kSummed, op.cols - col), begin = row * op.cols + col;
                AddUp(loops, add, op.parts, begin, n, sums);
                if (bias != nullptr) add(sums[0], bias + col, sums[0], n);
                loops.from_f32(sums[0], y + begin, n);
              }
            }
          });
        }};
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const Spread& op) {
  return Kernel{[op](Stream&) {
    for (int64_t i = 0; i < op.copies.list.count; ++i) {
      std::memcpy(op.copies.At(i).data, op.x.data, op.n * SizeOf(op.x.dtype));
    }
  }};
}

}  // namespace trainyard::kernels
