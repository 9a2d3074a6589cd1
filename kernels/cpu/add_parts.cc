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

// Adds up `n` elements, at most kSummed, of each of `count` parts, which `at(part)` points to. Two
// sums of as many parts each are added as soon as both are there; those that are left are added
// from the last on.
template <typename T, typename At>
const float* AddUp(const ElementLoops<T>& loops, decltype(ElementLoops<float>::add) add,
                   int64_t count, const At& at, int64_t n, float (&sums)[kDeepest][kSummed]) {
  int waiting = 0;
  for (int64_t part = 0; part < count; ++part) {
    loops.to_f32(at(part), sums[waiting++], n);
    for (int64_t pairs = part + 1; pairs % 2 == 0; pairs /= 2, --waiting) {
      add(sums[waiting - 2], sums[waiting - 1], sums[waiting - 2], n);
    }
  }
  for (; waiting > 1; --waiting) {
    add(sums[waiting - 2], sums[waiting - 1], sums[waiting - 2], n);
  }
  return sums[0];
}

// A kernel that writes y [rows, cols] = bias + the sum of `count` parts of E = T; `part_of(part)`
// points to the first element of one.
template <typename T, typename Op, typename PartOf>
Kernel SumOfParts(const VectorTable& vectors, int threads, const Op& op, int64_t count,
                  const PartOf& part_of) {
  return Kernel{
      [&loops = LoopsOf<T>(vectors), add = vectors.f32.add, threads, op, count, part_of](Stream&) {
        const float* const bias = OptionalAs<float>(op.bias);
        T* const y = op.y.template As<T>();
        ParallelFor(threads, op.rows, GrainOf(op.cols), [&](int64_t row) {
          float sums[kDeepest][kSummed];
          for (int64_t col = 0; col < op.cols; col += kSummed) {
            const int64_t n = std::min(kSummed, op.cols - col), begin = row * op.cols + col;
            AddUp(
                loops, add, count, [&](int64_t part) { return part_of(part) + begin; }, n, sums);
            if (bias != nullptr) add(sums[0], bias + col, sums[0], n);
            loops.from_f32(sums[0], y + begin, n);
          }
        });
      }};
}

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const AddParts& op) {
  return ForElement(op.y.dtype, [&]<typename T>() {
    return SumOfParts<T>(
        vectors_, threads_, op, op.parts.list.count,
        [parts = op.parts](int64_t i) { return static_cast<const T*>(parts.At(i).As<T>()); });
  });
}

absl::StatusOr<Kernel> CpuDevice::Bind(const AddRows& op) {
  return ForElement(op.y.dtype, [&]<typename T>() {
    return SumOfParts<T>(vectors_, threads_, op, op.count(), [op](int64_t i) {
      return static_cast<const T*>(op.Part(i).template As<T>());
    });
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
