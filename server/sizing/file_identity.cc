#include "server/sizing/file_identity.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "absl/time/clock.h"
#include "executor/data/files/regular_file.h"
#include "server/sizing/frames.h"
#include "storage/base/digest.h"

namespace trainyard {
namespace {

constexpr size_t kMostFiles = 4096;

// Magic numbers of statfs(2): ext2 to ext4, XFS, Btrfs, tmpfs, ramfs, overlayfs, ZFS, F2FS,
// SquashFS, EROFS. Others, such as NFS, may answer from a cache of old attributes.
constexpr std::array<uint32_t, 10> kLocal = {0xef53,     0x58465342, 0x9123683e, 0x01021994,
                                             0x858458f6, 0x794c7630, 0x2fc12fc1, 0xf2f52010,
                                             0x73717368, 0xe0f5e1e2};

// Looks at the file system of the longest part of `path` that exists.
bool IsOnLocalFileSystem(std::filesystem::path path) {
  struct statfs info {};
  while (statfs(path.c_str(), &info) != 0) {
    if (errno != ENOENT || !path.has_relative_path()) return false;
    path = path.parent_path();
  }
  const auto type = static_cast<uint32_t>(info.f_type);
  return std::find(kLocal.begin(), kLocal.end(), type) != kLocal.end();
}

bool HasSettled(const struct stat& info, absl::Time now) {
  const absl::Time changed =
      std::max(absl::TimeFromTimespec(info.st_mtim), absl::TimeFromTimespec(info.st_ctim));
  return changed + kSettled <= now;
}

class Paths {
 public:
  void Add(const std::string& uri) {
    if (uri.empty()) return;
    const absl::StatusOr<std::string> path = data::LocalPath(uri);
    known_ = known_ && path.ok() && paths_.size() < kMostFiles;
    if (known_) paths_.push_back(*path);
  }
  template <typename Uris>
  void AddAll(const Uris& uris) {
    for (const std::string& uri : uris) Add(uri);
  }
  std::optional<std::vector<std::string>> Take() {
    if (!known_) return std::nullopt;
    return std::move(paths_);
  }

 private:
  bool known_ = true;
  std::vector<std::string> paths_;
};

}  // namespace

std::optional<std::vector<std::string>> FilesNamedBy(const v1::JobSpec& spec) {
  if (!spec.fine_tune().from().empty()) return std::nullopt;  // a folder
  const v1::Data& data = spec.data();
  Paths paths;
  switch (data.source_case()) {
    case v1::Data::kIdx:
      paths.Add(data.idx().train_images());
      paths.Add(data.idx().train_labels());
      paths.Add(data.idx().test_images());
      paths.Add(data.idx().test_labels());
      return paths.Take();
    case v1::Data::kText:
      paths.Add(data.text().path());
      paths.Add(data.text().tokenizer_file());
      return paths.Take();
    case v1::Data::kTokens:
      paths.AddAll(data.tokens().train());
      paths.AddAll(data.tokens().validation());
      return paths.Take();
    case v1::Data::kWebdataset:
      paths.AddAll(data.webdataset().train());
      paths.AddAll(data.webdataset().validation());
      return paths.Take();
    case v1::Data::kCsv:
      paths.Add(data.csv().train());
      paths.Add(data.csv().validation());
      return paths.Take();
    case v1::Data::kCriteo:
      paths.Add(data.criteo().train());
      paths.Add(data.criteo().validation());
      return paths.Take();
    case v1::Data::kClicks:
      return paths.Take();  // generated
    case v1::Data::kImageFolder:
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return std::nullopt;
}

std::optional<std::string> IdentityOf(const std::vector<std::string>& paths) {
  if (paths.empty()) return kNoFiles;
  Sha256 digest;
  for (const std::string& path : paths) {
    data::TellOfOpen(path);
    std::array<int64_t, 8> identity{};  // all 0: it is not there
    struct stat info {};
    if (stat(path.c_str(), &info) == 0) {
      if (!HasSettled(info, absl::Now())) return std::nullopt;
      identity = {1,
                  static_cast<int64_t>(info.st_dev),
                  static_cast<int64_t>(info.st_ino),
                  info.st_size,
                  absl::ToUnixNanos(absl::TimeFromTimespec(info.st_mtim)),
                  absl::ToUnixNanos(absl::TimeFromTimespec(info.st_ctim)),
                  static_cast<int64_t>(info.st_mode),
                  static_cast<int64_t>(info.st_uid)};
    } else if (errno != ENOENT) {
      return std::nullopt;
    }
    if (!IsOnLocalFileSystem(path)) return std::nullopt;
    digest.Add(identity.data(), sizeof(identity));
  }
  return digest.Finish();
}

}  // namespace trainyard
