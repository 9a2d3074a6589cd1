#include "executor/data/files/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {
void (*open_observer)(const std::string& path) = nullptr;
}  // namespace

void ObserveOpens(void (*observer)(const std::string& path)) { open_observer = observer; }

void TellOfOpen(const std::string& path) {
  if (open_observer != nullptr) open_observer(path);
}

absl::StatusOr<std::string> LocalPath(const std::string& uri) {
  if (absl::StartsWith(uri, "/")) return uri;
  if (absl::StartsWith(uri, "file:///")) return uri.substr(7);
  const size_t scheme = uri.find("://");
  if (scheme != std::string::npos && !absl::StartsWith(uri, "file://")) {
    return absl::UnimplementedError(
        absl::StrCat(uri, ": the scheme ", uri.substr(0, scheme),
                     ":// is not built yet; use an absolute path or file://"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", uri, "': expected an absolute path or file:///path"));
}

absl::Status OpenPath(RegularFile& file) {
  TellOfOpen(file.path);
  // O_NONBLOCK: opening a pipe without a writer returns at once, and fstat then refuses it.
  file.fd = FileDescriptor(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.fd.valid()) return ErrnoStatus(errno, file.path);
  struct stat info {};
  if (fstat(file.fd.get(), &info) != 0) return ErrnoStatus(errno, file.path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": found ", S_ISDIR(info.st_mode) ? "a folder" : "a special file",
                     ", expected a regular file"));
  }
  file.bytes = info.st_size;
  return absl::OkStatus();
}

absl::StatusOr<RegularFile> OpenRegularFile(const std::string& uri) {
  RegularFile file;
  TY_ASSIGN_OR_RETURN(file.path, LocalPath(uri));
  TY_RETURN_IF_ERROR(OpenPath(file));
  return file;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t most) {
  RegularFile file;
  file.path = path;
  TY_RETURN_IF_ERROR(OpenPath(file));
  if (file.bytes > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", file.bytes, " bytes, expected at most ", most));
  }
  std::string text(static_cast<size_t>(file.bytes), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file, 0, text.data(), file.bytes));
  return text;
}

absl::Status ReadExactly(const RegularFile& file, int64_t offset, void* to, int64_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(file.fd.get(), at, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, file.path);
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat(file.path, ": ends at byte ", offset, ", ", bytes, " bytes too early"));
    }
    at += n;
    offset += n;
    bytes -= n;
  }
  return absl::OkStatus();
}

}  // namespace trainyard::data
