#include "server/restore/checkpoint_folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/digest.h"
#include "storage/base/file.h"
#include "storage/base/status.h"
#include "storage/objects/object_store.h"

namespace trainyard {
namespace {

constexpr off_t kLargestManifest = 1 << 20;
constexpr char kManifest[] = "manifest.json";  // executor/engine/checkpoint/manifest.h

// Below `folder`, without following a link at its end, and without waiting for the other end of a
// pipe.
FileDescriptor OpenBelow(int folder, const std::string& name, int flags) {
  return FileDescriptor(
      openat(folder, name.c_str(), flags | O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

// Names in a folder, sorted, but for hidden ones. One that is not there has none.
absl::StatusOr<std::vector<std::string>> NamesIn(FileDescriptor folder, const std::string& path) {
  std::vector<std::string> names;
  DIR* const open = fdopendir(folder.get());
  if (open == nullptr) return ErrnoStatus(errno, path);
  folder.Release();  // closedir closes it
  errno = 0;
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    errno = 0;
  }
  const int error = errno;
  closedir(open);
  if (error != 0) return ErrnoStatus(error, path);
  std::sort(names.begin(), names.end());
  return names;
}

// The step in "step-00001000".
std::optional<int64_t> StepOf(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, "step-") || name.size() < 8 || !absl::SimpleAtoi(name, &step)) {
    return std::nullopt;
  }
  return step > 0 ? std::optional<int64_t>(step) : std::nullopt;
}

// Of a plain file; nothing if it is anything else.
std::optional<int64_t> SizeOf(int folder, const std::string& name) {
  struct stat info;
  if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) {
    return std::nullopt;
  }
  return info.st_size;
}

absl::StatusOr<std::string> ReadManifest(int folder) {
  const FileDescriptor file = OpenBelow(folder, kManifest, 0);
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info) != 0) return ErrnoStatus(errno, kManifest);
  if (!S_ISREG(info.st_mode) || info.st_size > kLargestManifest) {
    return absl::DataLossError("is no manifest");
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file.get(), 0, text.size(), text.data(), kManifest));
  return text;
}

// Nothing if the folder does not hold what its manifest says.
std::optional<CheckpointRecord> ReadCheckpoint(int folder, int64_t step) {
  const absl::StatusOr<std::string> text = ReadManifest(folder);
  if (!text.ok()) return std::nullopt;
  try {
    const auto manifest = nlohmann::json::parse(*text);
    if (manifest.at("step").get<int64_t>() != step) return std::nullopt;
    CheckpointRecord found{.step = step,
                           .manifest_sha256 = Sha256Hex(*text),
                           .weights_sha256 = manifest.at("weights_sha256").get<std::string>()};
    for (const auto& file : manifest.at("files")) {
      const auto bytes = file.at("bytes").get<int64_t>();
      if (SizeOf(folder, file.at("name").get<std::string>()) != bytes) return std::nullopt;
      found.bytes += bytes;
    }
    if (found.weights_sha256.size() != 64) return std::nullopt;
    if (const auto metrics = manifest.find("metrics"); metrics != manifest.end()) {
      for (const auto& [name, value] : metrics->items()) {
        if (value.is_number() && std::isfinite(value.get<double>())) {
          found.metrics[name] = value.get<double>();
        }
      }
    }
    return found;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

absl::StatusOr<std::vector<CheckpointRecord>> LookAtCheckpoints(const std::string& folder) {
  TY_ASSIGN_OR_RETURN(const std::string path, LocalPath(folder));
  std::vector<CheckpointRecord> there;
  FileDescriptor opened = OpenBelow(AT_FDCWD, path, O_DIRECTORY);
  if (!opened.valid()) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return there;
    return ErrnoStatus(errno, path);
  }
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(std::move(opened), path));
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step.has_value()) continue;
    const FileDescriptor at = OpenBelow(AT_FDCWD, absl::StrCat(path, "/", name), O_DIRECTORY);
    if (!at.valid()) continue;
    std::optional<CheckpointRecord> found = ReadCheckpoint(at.get(), *step);
    if (!found.has_value()) continue;
    found->uri = absl::StrCat(folder, "/", name);
    struct stat info;
    if (fstat(at.get(), &info) == 0) found->create_time = absl::TimeFromTimespec(info.st_mtim);
    there.push_back(*std::move(found));
  }
  return there;
}

absl::StatusOr<std::vector<std::string>> ListJobFolders(const std::string& root) {
  TY_ASSIGN_OR_RETURN(const std::string path, LocalPath(root));
  std::vector<std::string> folders;
  FileDescriptor opened = OpenBelow(AT_FDCWD, path, O_DIRECTORY);
  if (!opened.valid()) return ErrnoStatus(errno, path);
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> projects, NamesIn(std::move(opened), path));
  for (const std::string& project : projects) {
    const std::string below = absl::StrCat(path, "/", project);
    FileDescriptor at = OpenBelow(AT_FDCWD, below, O_DIRECTORY);
    if (!at.valid()) continue;
    TY_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, NamesIn(std::move(at), below));
    for (const std::string& job : jobs) {
      folders.push_back(absl::StrCat(absl::StripSuffix(root, "/"), "/", project, "/", job));
    }
  }
  return folders;
}

}  // namespace trainyard
