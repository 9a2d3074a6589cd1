#include "server/restore/checkpoint_folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "storage/base/digest.h"
#include "storage/base/file.h"
#include "storage/base/status.h"
#include "storage/objects/object_store.h"

namespace trainyard {
namespace {

constexpr off_t kLargestManifest = 1 << 20;
constexpr size_t kLongestName = 64;
constexpr size_t kMostFiles = 64;
constexpr size_t kMostMetrics = 64;
constexpr size_t kMostCheckpoints = 100'000;      // of a job
constexpr int64_t kMostBytes = int64_t{1} << 50;  // of a file
// As executor/engine/checkpoint/layout.h has them.
constexpr char kManifest[] = "manifest.json";
constexpr char kState[] = "trainer_state/state.json";
constexpr const char* kNeededFiles[] = {"config.json", "model.safetensors",
                                        "trainer_state/optimizer.safetensors", kState};

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
  if (!absl::ConsumePrefix(&name, "step-") || !absl::SimpleAtoi(name, &step) || step < 0) {
    return std::nullopt;
  }
  return absl::StrFormat("%08d", step) == name ? std::optional<int64_t>(step) : std::nullopt;
}

// Whether the error says that a file is not there, or is none; any other fails the restore, or what
// cannot be read for a moment would be taken for lost.
// (A socket is opened with ENXIO, what somebody holds a lease on with EWOULDBLOCK.)
bool IsNotThere(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO ||
         error == EWOULDBLOCK;
}

// The size of a plain file; nothing if it is anything else, or not there.
absl::StatusOr<std::optional<int64_t>> SizeOf(int folder, const std::string& name) {
  struct stat info;
  if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return S_ISREG(info.st_mode) ? std::optional<int64_t>(info.st_size) : std::nullopt;
  }
  if (IsNotThere(errno)) return std::optional<int64_t>();
  return ErrnoStatus(errno, name);
}

// Nothing if it is no plain file of a sensible size, or not there.
absl::StatusOr<std::optional<std::string>> ReadPlain(int folder, const std::string& name) {
  const FileDescriptor file = OpenBelow(folder, name, 0);
  struct stat info;
  if (!file.valid() || fstat(file.get(), &info) != 0) {
    if (IsNotThere(errno)) return std::optional<std::string>();
    return ErrnoStatus(errno, name);
  }
  if (!S_ISREG(info.st_mode) || info.st_size > kLargestManifest)
    return std::optional<std::string>();
  std::string text(static_cast<size_t>(info.st_size), '\0');
  const absl::Status read = ReadExactly(file.get(), 0, text.size(), text.data(), name);
  if (absl::IsOutOfRange(read)) return std::optional<std::string>();  // it shrinks meanwhile
  TY_RETURN_IF_ERROR(read);
  return std::optional<std::string>(std::move(text));
}

bool IsDigest(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

// A name of a metric, or of a file below its folder, as the engine writes them.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName && name.front() != '/' &&
         !absl::StrContains(name, "..") && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(c) || absl::StrContains("_-./", absl::string_view(&c, 1));
         });
}

// What a manifest says, if it is one; nothing of it is believed that can be checked.
struct ManifestFacts {
  CheckpointRecord checkpoint;
  std::map<std::string, int64_t> files;  // their bytes
};
std::optional<ManifestFacts> FactsOf(const std::string& text, int64_t step) {
  try {
    const auto manifest = nlohmann::json::parse(text);
    ManifestFacts facts;
    CheckpointRecord& found = facts.checkpoint;
    found.step = step;
    found.manifest_sha256 = Sha256Hex(text);
    found.weights_sha256 = manifest.at("weights_sha256").get<std::string>();
    if (manifest.at("step").get<int64_t>() != step || !IsDigest(found.weights_sha256)) {
      return std::nullopt;
    }
    for (const auto& file : manifest.at("files")) {
      const auto name = file.at("name").get<std::string>();
      const auto bytes = file.at("bytes").get<int64_t>();
      if (!IsPlainName(name) || bytes < 0 || bytes > kMostBytes) return std::nullopt;
      if (!facts.files.emplace(name, bytes).second || facts.files.size() > kMostFiles) {
        return std::nullopt;
      }
      found.bytes += bytes;
    }
    for (const char* needed : kNeededFiles) {
      if (facts.files.count(needed) == 0) return std::nullopt;
    }
    if (const auto metrics = manifest.find("metrics"); metrics != manifest.end()) {
      for (const auto& [name, value] : metrics->items()) {
        if (!IsPlainName(name) || found.metrics.size() == kMostMetrics) return std::nullopt;
        if (value.is_number() && std::isfinite(value.get<double>())) {
          found.metrics[name] = value.get<double>();
        }
      }
    }
    return facts;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// How often the run had gone back to an earlier step when it wrote this (training.on_non_finite).
int64_t RollbacksIn(const std::string& state) {
  const auto parsed = nlohmann::json::parse(state, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return 0;
  const auto rollbacks = parsed.find("rollbacks");
  return rollbacks != parsed.end() && rollbacks->is_number_integer() ? rollbacks->get<int64_t>()
                                                                     : 0;
}

struct FoundCheckpoint {
  CheckpointRecord checkpoint;
  int64_t rollbacks = 0;
};

// Nothing if the folder does not hold what its manifest says.
absl::StatusOr<std::optional<FoundCheckpoint>> ReadCheckpoint(int folder, int64_t step) {
  using Found = std::optional<FoundCheckpoint>;
  TY_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadPlain(folder, kManifest));
  if (!text.has_value()) return Found();
  const std::optional<ManifestFacts> facts = FactsOf(*text, step);
  if (!facts.has_value()) return Found();
  for (const auto& [name, bytes] : facts->files) {
    TY_ASSIGN_OR_RETURN(const std::optional<int64_t> size, SizeOf(folder, name));
    if (size != bytes) return Found();
  }
  TY_ASSIGN_OR_RETURN(const std::optional<std::string> state, ReadPlain(folder, kState));
  return Found({facts->checkpoint, RollbacksIn(state.value_or(""))});
}

// Without those that a run left behind when it went back to an earlier step, and was killed before
// it had removed them.
std::vector<CheckpointRecord> OfTheLastCourse(std::vector<FoundCheckpoint> found) {
  std::vector<CheckpointRecord> checkpoints;
  int64_t most = -1;  // of those before a step
  std::sort(found.begin(), found.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    return a.checkpoint.step < b.checkpoint.step;
  });
  for (FoundCheckpoint& one : found) {
    if (one.rollbacks < most) continue;
    most = one.rollbacks;
    checkpoints.push_back(std::move(one.checkpoint));
  }
  return checkpoints;
}

}  // namespace

absl::StatusOr<std::vector<CheckpointRecord>> LookAtCheckpoints(const std::string& folder) {
  TY_ASSIGN_OR_RETURN(const std::string path, LocalPath(folder));
  FileDescriptor opened = OpenBelow(AT_FDCWD, path, O_DIRECTORY);
  if (!opened.valid()) {
    if (IsNotThere(errno)) return std::vector<CheckpointRecord>();
    return ErrnoStatus(errno, path);
  }
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(std::move(opened), path));
  std::vector<FoundCheckpoint> there;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step.has_value()) continue;
    const std::string below = absl::StrCat(path, "/", name);
    const FileDescriptor at = OpenBelow(AT_FDCWD, below, O_DIRECTORY);
    if (!at.valid() && IsNotThere(errno)) continue;
    if (!at.valid()) return ErrnoStatus(errno, below);
    absl::StatusOr<std::optional<FoundCheckpoint>> found = ReadCheckpoint(at.get(), *step);
    if (!found.ok()) return Annotate(found.status(), below);
    if (!found->has_value()) continue;
    CheckpointRecord& checkpoint = (*found)->checkpoint;
    checkpoint.uri = absl::StrCat(folder, "/", name);
    struct stat info;
    if (fstat(at.get(), &info) == 0) checkpoint.create_time = absl::TimeFromTimespec(info.st_mtim);
    there.push_back(*std::move(*found));
    if (there.size() > kMostCheckpoints) there.erase(there.begin());  // the oldest; they are sorted
  }
  return OfTheLastCourse(std::move(there));
}

absl::StatusOr<std::vector<std::string>> ListJobFolders(const std::string& root) {
  TY_ASSIGN_OR_RETURN(const std::string path, LocalPath(root));
  std::vector<std::string> folders;
  FileDescriptor opened(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid()) return ErrnoStatus(errno, path);
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> projects, NamesIn(std::move(opened), path));
  for (const std::string& project : projects) {
    const std::string below = absl::StrCat(path, "/", project);
    FileDescriptor at = OpenBelow(AT_FDCWD, below, O_DIRECTORY);
    if (!at.valid() && IsNotThere(errno)) continue;
    if (!at.valid()) return ErrnoStatus(errno, below);
    TY_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, NamesIn(std::move(at), below));
    for (const std::string& job : jobs) {
      folders.push_back(absl::StrCat(absl::StripSuffix(root, "/"), "/", project, "/", job));
    }
  }
  return folders;
}

}  // namespace trainyard
