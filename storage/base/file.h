#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~FileDescriptor() { Reset(-1); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset(int fd);

 private:
  int fd_ = -1;
};

// errno as a Status: ENOENT and ENOTDIR are kNotFound; EACCES, EPERM and EROFS kPermissionDenied;
// ENOSPC and EDQUOT kResourceExhausted; a path that can name no file (EISDIR, ELOOP, ENAMETOOLONG)
// kInvalidArgument. All others (EIO, ESTALE, EMFILE) are kInternal: faults of the machine, which
// may pass. The message reads "`what`: No space left on device".
absl::Status ErrnoStatus(int error, absl::string_view what);

// At most `limit` bytes are read; a larger file is kResourceExhausted.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit = int64_t{1} << 30);

// Fills `to` with exactly `bytes` from `offset` on; kOutOfRange: the file ends before that. `what`
// is for messages.
absl::Status ReadExactly(int fd, int64_t offset, size_t bytes, void* to, absl::string_view what);

// Writes everything or fails; continues after EINTR and short writes.
absl::Status WriteAll(int fd, absl::string_view data, absl::string_view what);

// Readers see the old content or the new one, also after a power cut: temporary file in the same
// folder, fsync, rename, fsync of the folder.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view data, int mode = 0644);

// Adds a line to a file, which is made if it is not there; durable when this returns OK. Behind a
// line of which only a part was written, it begins one of its own.
absl::Status AppendLine(const std::string& path, absl::string_view line);

absl::Status FsyncDirectory(const std::string& path);

// mkdir -p.
absl::Status MakeDirectories(const std::string& path, int mode = 0755);

}  // namespace trainyard
