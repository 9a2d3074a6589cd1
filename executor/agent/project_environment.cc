#include "executor/agent/project_environment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr off_t kMostBytes = 32 << 10;

bool IsName(absl::string_view name) {
  return absl::StartsWith(name, "AWS_") && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isupper(static_cast<unsigned char>(c)) ||
                  absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '_';
         });
}

}  // namespace

std::map<std::string, std::string> OwnCredentials(const char* const* ours) {
  std::map<std::string, std::string> variables;
  for (const char* const* entry = ours; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == text.npos || !IsName(text.substr(0, equals))) continue;
    variables[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  return variables;
}

absl::StatusOr<std::optional<std::map<std::string, std::string>>> ReadProjectEnvironment(
    const std::string& folder, const std::string& job_name) {
  std::map<std::string, std::string> variables;
  const std::vector<absl::string_view> parts = absl::StrSplit(job_name, '/');
  const absl::string_view project = parts.size() > 1 ? parts[1] : "";
  if (project.empty() || project[0] == '.') return std::nullopt;
  const std::string path = absl::StrCat(folder, "/", project, ".env");
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) return std::nullopt;
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode) || (info.st_mode & 077) != 0 ||
      (info.st_uid != 0 && info.st_uid != geteuid())) {
    return absl::PermissionDeniedError(absl::StrCat(
        path, ": expected a file that its owner, root or the agent's user, alone may read"));
  }
  if (info.st_size > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", info.st_size, " bytes, expected at most ", kMostBytes));
  }
  std::string text(info.st_size, '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file.get(), 0, text.size(), text.data(), path));
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    if (equals == line.npos || !IsName(line.substr(0, equals)) ||
        absl::StrContains(line, absl::string_view("\0", 1))) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", number, ": expected AWS_NAME=VALUE"));
    }
    variables[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
  }
  return variables;
}

}  // namespace trainyard
