#pragma once

// Memory that the processes of an emulated communicator share. It has no name anywhere, so that it
// is gone with the last of them, however they end.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/nccl_library.h"

namespace trainyard::emulator {

inline constexpr int kMostRanks = 16;

// What one rank sends to one other, or to itself: a ring of bytes.
class Channel {
 public:
  // Moves as much as there is room for, or as is there; returns how much that was.
  size_t Write(const void* from, size_t bytes);
  size_t Read(void* to, size_t bytes);
  // Read, but leaves it there, and does so for all `bytes` or not at all.
  bool Peek(void* to, size_t bytes) const;
  // Whether everything that was written has been read.
  bool Drained() const { return written_.load() == read_.load(); }

 private:
  static constexpr size_t kRing = 64 << 10;
  void Copy(uint64_t at, void* to, size_t bytes) const;

  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> read_;
  char ring_[kRing];
};

// Zero at first.
struct NcclMemory {
  char token[16];  // in the id, too
  std::atomic<int> size;
  std::atomic<uint32_t> joined;  // a bit per rank
  // By rank: others wait for its part. A futex.
  alignas(64) std::atomic<uint32_t> awaited[kMostRanks];
  Channel channels[kMostRanks][kMostRanks];  // [from][to]
};

// Made by the rank that makes the id; the others find it by the id while that process lives.
bool MakeNcclMemory(kernels::cuda::NcclUniqueId& id);
// Null: the id names none.
std::shared_ptr<NcclMemory> OpenNcclMemory(const kernels::cuda::NcclUniqueId& id);

// Lets the process of `rank` know that somebody waits for it.
void AwaitRank(NcclMemory& memory, int rank);
// Returns whether somebody waits for `rank`; looks for a while.
bool IsAwaited(NcclMemory& memory, int rank);

}  // namespace trainyard::emulator
