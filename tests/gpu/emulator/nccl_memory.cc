#include "tests/gpu/emulator/nccl_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>

namespace trainyard::emulator {
namespace {

// An id: where the memory is, and how to know that it is the one.
struct Place {
  char word[8] = "emulate";
  pid_t process = 0;
  int fd = -1;
  char token[sizeof(NcclMemory::token)] = {};
};
static_assert(sizeof(Place) <= sizeof(kernels::cuda::NcclUniqueId));

std::shared_ptr<NcclMemory> Map(int fd) {
  void* const at = mmap(nullptr, sizeof(NcclMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  return {static_cast<NcclMemory*>(at),
          [](NcclMemory* memory) { munmap(memory, sizeof(NcclMemory)); }};
}

}  // namespace

size_t Channel::Write(const void* from, size_t bytes) {
  const uint64_t at = written_.load();
  const size_t count = std::min(bytes, kRing - static_cast<size_t>(at - read_.load()));
  const size_t first = std::min(count, kRing - at % kRing);
  if (count == 0) return 0;
  std::memcpy(ring_ + at % kRing, from, first);
  std::memcpy(ring_, static_cast<const char*>(from) + first, count - first);
  written_.store(at + count);
  return count;
}

void Channel::Copy(uint64_t at, void* to, size_t bytes) const {
  const size_t first = std::min(bytes, kRing - at % kRing);
  std::memcpy(to, ring_ + at % kRing, first);
  std::memcpy(static_cast<char*>(to) + first, ring_, bytes - first);
}

size_t Channel::Read(void* to, size_t bytes) {
  const uint64_t at = read_.load();
  const size_t count = std::min(bytes, static_cast<size_t>(written_.load() - at));
  if (count == 0) return 0;
  Copy(at, to, count);
  read_.store(at + count);
  return count;
}

bool Channel::Peek(void* to, size_t bytes) const {
  const uint64_t at = read_.load();
  if (written_.load() - at < bytes) return false;
  Copy(at, to, bytes);
  return true;
}

// The descriptor stays open as long as the process lives: it is what the id names.
bool MakeNcclMemory(kernels::cuda::NcclUniqueId& id) {
  Place place;
  place.process = getpid();
  place.fd = memfd_create("emulated NCCL", MFD_CLOEXEC);
  if (place.fd < 0 || ftruncate(place.fd, sizeof(NcclMemory)) != 0) return false;
  if (getrandom(place.token, sizeof(place.token), 0) != sizeof(place.token)) return false;
  const std::shared_ptr<NcclMemory> memory = Map(place.fd);
  if (memory == nullptr) return false;
  std::memcpy(memory->token, place.token, sizeof(place.token));
  std::memset(&id, 0, sizeof(id));
  std::memcpy(&id, &place, sizeof(place));
  return true;
}

std::shared_ptr<NcclMemory> OpenNcclMemory(const kernels::cuda::NcclUniqueId& id) {
  Place place;
  std::memcpy(static_cast<void*>(&place), &id, sizeof(place));
  if (std::memcmp(place.word, Place().word, sizeof(place.word)) != 0) return nullptr;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", place.process, place.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  const bool whole = lseek(fd, 0, SEEK_END) == static_cast<off_t>(sizeof(NcclMemory));
  std::shared_ptr<NcclMemory> memory = whole ? Map(fd) : nullptr;
  close(fd);
  // Another process may have the number by now.
  if (memory != nullptr && std::memcmp(memory->token, place.token, sizeof(place.token)) != 0) {
    return nullptr;
  }
  return memory;
}

void AwaitRank(NcclMemory& memory, int rank) {
  if (memory.awaited[rank].exchange(1) != 0) return;
  syscall(SYS_futex, &memory.awaited[rank], FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool IsAwaited(NcclMemory& memory, int rank) {
  const timespec second = {.tv_sec = 1, .tv_nsec = 0};
  syscall(SYS_futex, &memory.awaited[rank], FUTEX_WAIT, 0, &second, nullptr, 0);
  return memory.awaited[rank].exchange(0) != 0;
}

}  // namespace trainyard::emulator
