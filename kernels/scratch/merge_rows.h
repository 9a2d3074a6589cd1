#pragma once

// Merging the gradients of equal rows on the CPU.

#include <bit>

#include "kernels/scratch/sizes.h"

namespace trainyard::kernels::scratch {

// Slots of the hash table in which a thread finds the first sample of each row of a table: a power
// of two, at least twice as many as samples.
constexpr int64_t MergeRowsSlots(int64_t samples) {
  return static_cast<int64_t>(std::bit_ceil(2 * static_cast<uint64_t>(samples)));
}
// With the next sample of the same row for each.
constexpr int64_t MergeRows(int64_t samples, int64_t threads) {
  return threads * (MergeRowsSlots(samples) + samples) * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace trainyard::kernels::scratch
