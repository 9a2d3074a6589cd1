#include "executor/run/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::run {

absl::StatusOr<std::string> ReadAt(int fd, int64_t offset, int64_t limit, const std::string& path) {
  std::string bytes(limit, '\0');
  int64_t have = 0;
  while (have < limit) {
    const ssize_t n = pread(fd, bytes.data() + have, limit - have, offset + have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) break;
    have += n;
  }
  bytes.resize(have);
  return bytes;
}

absl::Status WritePlainFile(const std::string& path, absl::string_view data, int mode) {
  const FileDescriptor fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode));
  // Whatever the mask of this process and the mode of an older file say.
  if (!fd.valid() || fchmod(fd.get(), mode) != 0) return ErrnoStatus(errno, path);
  return WriteAll(fd.get(), data, path);
}

absl::Status ReplacePlainFile(const std::string& path, absl::string_view data, int mode) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  TY_RETURN_IF_ERROR(WritePlainFile(temporary, data, mode));
  if (rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

}  // namespace trainyard::run
