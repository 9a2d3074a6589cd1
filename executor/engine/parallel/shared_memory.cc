#include "executor/engine/parallel/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "executor/engine/parallel/copy.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr size_t kMask = SharedMemory::kRingBytes - 1;
static_assert((SharedMemory::kRingBytes & kMask) == 0, "a power of two");

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::StatusOr<char*> MapBytes(int fd) {
  void* const bytes =
      mmap(nullptr, SharedMemory::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (bytes == MAP_FAILED) return ErrnoStatus(errno, "shared memory");
  return static_cast<char*>(bytes);
}

absl::Status Nonsense() {
  return absl::UnavailableError("wrote a counter into the shared memory that cannot be");
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(FileDescriptor& fd) {
  fd = FileDescriptor(memfd_create("trainyard ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  // Memory that is not there is noticed here, not when it is written to.
  if (fallocate(fd.get(), 0, 0, kBytes) != 0) return ErrnoStatus(errno, "shared memory");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus(errno, "F_ADD_SEALS");
  TY_ASSIGN_OR_RETURN(char* const bytes, MapBytes(fd.get()));
  return SharedMemory(bytes, 0);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(int fd) {
  struct stat facts;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &facts) != 0 ||
      facts.st_size != static_cast<off_t>(kBytes)) {
    return absl::InvalidArgumentError("what was handed over is not the memory of two ranks");
  }
  TY_ASSIGN_OR_RETURN(char* const bytes, MapBytes(fd));
  return SharedMemory(bytes, 1);
}

SharedMemory::~SharedMemory() {
  if (bytes_ != nullptr) munmap(bytes_, kBytes);
}

absl::StatusOr<size_t> RingWriter::Write(absl::Span<const char> bytes) {
  if (written_ - read_ + bytes.size() > SharedMemory::kRingBytes) {
    const uint64_t read = counters_.read.load(std::memory_order_acquire);
    if (read < read_ || read > written_) return Nonsense();
    read_ = read;
  }
  const size_t room = SharedMemory::kRingBytes - (written_ - read_);
  const size_t count = std::min(room, bytes.size());
  if (count == 0) return 0;
  const size_t at = written_ & kMask;
  const size_t before_end = std::min(count, SharedMemory::kRingBytes - at);
  CopyPiece(ring_ + at, bytes.data(), before_end);
  CopyPiece(ring_, bytes.data() + before_end, count - before_end);
  written_ += count;
  counters_.written.store(written_, std::memory_order_release);
  return count;
}

absl::StatusOr<size_t> RingReader::Read(absl::Span<char> bytes) {
  if (written_ - read_ < bytes.size()) {
    const uint64_t written = counters_.written.load(std::memory_order_acquire);
    if (written < written_ || written - read_ > SharedMemory::kRingBytes) return Nonsense();
    written_ = written;
  }
  const size_t count = std::min<size_t>(written_ - read_, bytes.size());
  if (count == 0) return 0;
  const size_t at = read_ & kMask;
  const size_t before_end = std::min(count, SharedMemory::kRingBytes - at);
  CopyPiece(bytes.data(), ring_ + at, before_end);
  CopyPiece(bytes.data() + before_end, ring_, count - before_end);
  read_ += count;
  counters_.read.store(read_, std::memory_order_release);
  return count;
}

}  // namespace trainyard::engine
