#include "clients/cli/programs.h"

#include <limits.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::cli {

absl::StatusOr<std::string> OwnProgram() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length < 0) return ErrnoStatus(errno, "/proc/self/exe");
  return std::string(path, length);
}

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  TY_ASSIGN_OR_RETURN(const std::string own, OwnProgram());
  const std::string path = absl::StrCat(own.substr(0, own.rfind('/') + 1), name);
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("no program ", path, "; build it with `cmake --build --preset release`"));
  }
  return path;
}

}  // namespace trainyard::cli
