#include "storage/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {

void FileDescriptor::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  absl::StatusCode code = absl::StatusCode::kInternal;
  if (error == ENOENT || error == ENOTDIR) code = absl::StatusCode::kNotFound;
  if (error == EACCES || error == EPERM || error == EROFS)
    code = absl::StatusCode::kPermissionDenied;
  if (error == ENOSPC || error == EDQUOT) code = absl::StatusCode::kResourceExhausted;
  if (error == EISDIR || error == ELOOP || error == ENAMETOOLONG)
    code = absl::StatusCode::kInvalidArgument;
  return absl::Status(code, absl::StrCat(what, ": ", strerror(error)));
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) return content;
    if (static_cast<int64_t>(content.size()) + n > limit) {
      return absl::ResourceExhaustedError(absl::StrCat(path, ": larger than ", limit, " bytes"));
    }
    content.append(buffer, n);
  }
}

absl::Status ReadExactly(int fd, int64_t offset, size_t bytes, void* to, absl::string_view what) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(fd, at, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, what);
    if (n == 0) {
      return absl::OutOfRangeError(
          absl::StrCat(what, ": ends at byte ", offset, ", ", bytes, " more were expected"));
    }
    at += n;
    offset += n;
    bytes -= n;
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, absl::string_view data, absl::string_view what) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, what);
    data.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view data, int mode) {
  const std::string temporary = absl::StrCat(path, ".tmp-", RandomHex(4));
  FileDescriptor fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  absl::Status status = WriteAll(fd.get(), data, path);
  if (status.ok() && fsync(fd.get()) != 0) status = ErrnoStatus(errno, path);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = ErrnoStatus(errno, path);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return FsyncDirectory(std::filesystem::path(path).parent_path().string());
}

absl::Status AppendLine(const std::string& path, absl::string_view line) {
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, path);
  const off_t end = lseek(file.get(), 0, SEEK_END);
  char last = '\n';
  if (end > 0 && pread(file.get(), &last, 1, end - 1) != 1) return ErrnoStatus(errno, path);
  TY_RETURN_IF_ERROR(
      WriteAll(file.get(), absl::StrCat(last == '\n' ? "" : "\n", line, "\n"), path));
  if (fdatasync(file.get()) != 0) return ErrnoStatus(errno, path);
  if (end > 0) return absl::OkStatus();
  return FsyncDirectory(std::filesystem::path(path).parent_path().string());
}

absl::Status FsyncDirectory(const std::string& path) {
  FileDescriptor fd(open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path, int mode) {
  for (size_t at = 1; at != std::string::npos;) {
    at = path.find('/', at + 1);
    const std::string prefix = path.substr(0, at);
    if (mkdir(prefix.c_str(), mode) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("cannot make folder ", prefix));
    }
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) return absl::NotFoundError(absl::StrCat(path, ": is not a folder"));
  return absl::OkStatus();
}

}  // namespace trainyard
