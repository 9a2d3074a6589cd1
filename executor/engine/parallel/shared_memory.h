#pragma once

// Memory that two ranks of one host share, without a name anywhere: it is gone with the last of
// them. Neither trusts what the other writes there.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// Bytes on their way in one direction. Both counters only grow, and differ by at most the capacity.
struct RingCounters {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};

// The first page of the memory.
struct MemoryHead {
  RingCounters rings[2];  // [0]: from the rank that made the memory to the one that was given it
  struct Side {
    alignas(64) std::atomic<uint32_t> wants_ring;  // that rank sleeps, or is about to
  } sides[2];                                      // [0]: the rank that made the memory
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The mapping. Movable.
class SharedMemory {
 public:
  static constexpr size_t kRingBytes = size_t{1} << 20;
  static constexpr size_t kHeadBytes = 4096;
  static constexpr size_t kBytes = kHeadBytes + 2 * kRingBytes;

  // Makes memory whose size nobody can change any more, and says in `fd` how to hand it on.
  static absl::StatusOr<SharedMemory> Create(FileDescriptor& fd);
  // Maps what another process made with Create. kInvalidArgument: it is something else, with which
  // the other process could make this one crash.
  static absl::StatusOr<SharedMemory> Map(int fd);

  SharedMemory(SharedMemory&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), side_(other.side_) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  int side() const { return side_; }  // 0 after Create, 1 after Map
  MemoryHead& head() const { return *reinterpret_cast<MemoryHead*>(bytes_); }
  char* ring(int index) const { return bytes_ + kHeadBytes + index * kRingBytes; }

 private:
  SharedMemory(char* bytes, int side) : bytes_(bytes), side_(side) {}
  char* bytes_;
  int side_;
};
static_assert(sizeof(MemoryHead) <= SharedMemory::kHeadBytes);

// The end of a ring that only this process writes to. What the other process says is believed only
// as far as it can be true.
class RingWriter {
 public:
  RingWriter(RingCounters& counters, char* ring) : counters_(counters), ring_(ring) {}

  // Copies as much of `bytes` as there is room for, and returns how much that is.
  absl::StatusOr<size_t> Write(absl::Span<const char> bytes);

 private:
  RingCounters& counters_;
  char* const ring_;
  uint64_t written_ = 0;
  uint64_t read_ = 0;  // as the other end said last
};

class RingReader {
 public:
  RingReader(RingCounters& counters, const char* ring) : counters_(counters), ring_(ring) {}

  // Copies as much to the front of `bytes` as is there, and returns how much that is.
  absl::StatusOr<size_t> Read(absl::Span<char> bytes);

 private:
  RingCounters& counters_;
  const char* const ring_;
  uint64_t written_ = 0;  // as the other end said last
  uint64_t read_ = 0;
};

}  // namespace trainyard::engine
