#include "storage/objects/file_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

constexpr char kStagedPrefix[] = ".tmp-";

absl::Status FromErrorCode(const std::error_code& error, const std::string& what) {
  return error ? ErrnoStatus(error.value(), what) : absl::OkStatus();
}

absl::StatusOr<std::string> FolderPath(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(std::string path, LocalPath(uri));
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string ParentOf(const std::string& path) { return fs::path(path).parent_path().string(); }

class FileReader : public ObjectReader {
 public:
  FileReader(FileDescriptor fd, int64_t size, std::string path)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)) {}

  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, size_t bytes, void* to) override {
    char* at = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t n = pread(fd_.get(), at, bytes, offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, path_);
      if (n == 0) {
        return absl::OutOfRangeError(
            absl::StrCat(path_, ": ends at byte ", offset, ", ", bytes, " more were expected"));
      }
      at += n;
      offset += n;
      bytes -= n;
    }
    return absl::OkStatus();
  }

 private:
  FileDescriptor fd_;
  int64_t size_;
  std::string path_;
};

absl::StatusOr<std::unique_ptr<ObjectReader>> OpenFile(const std::string& path) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is not a regular file"));
  }
  return std::make_unique<FileReader>(std::move(fd), info.st_size, path);
}

class FileWriter : public ObjectWriter {
 public:
  FileWriter(FileDescriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status Append(absl::string_view data) override { return WriteAll(fd_.get(), data, path_); }

  absl::Status Finish() override {
    if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, path_);
    // Some file systems (NFS, quotas) report a write that failed only here.
    if (close(fd_.Release()) != 0) return ErrnoStatus(errno, path_);
    return absl::OkStatus();
  }

 private:
  FileDescriptor fd_;
  std::string path_;
};

// Renames without replacing.
absl::Status RenameNew(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  if (errno == EINVAL || errno == ENOSYS) {
    // The file system lacks the flag. rename() of a folder replaces an empty folder only, and a
    // committed one never is.
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  }
  if (errno == EEXIST || errno == ENOTEMPTY) {
    return absl::AlreadyExistsError(absl::StrCat(to, ": exists already"));
  }
  return ErrnoStatus(errno, to);
}

class FileStagedFolder : public StagedFolder {
 public:
  FileStagedFolder(std::string temporary, std::string path)
      : temporary_(std::move(temporary)), path_(std::move(path)), folders_{temporary_} {}

  ~FileStagedFolder() override {
    std::error_code ignored;  // a rest is removed by DeleteStaged
    if (!committed_) fs::remove_all(temporary_, ignored);
  }

  absl::StatusOr<std::unique_ptr<ObjectWriter>> Create(const std::string& name) override {
    const std::string path = absl::StrCat(temporary_, "/", name);
    TY_RETURN_IF_ERROR(MakeDirectories(ParentOf(path)));
    for (std::string up = ParentOf(path); up.size() > temporary_.size(); up = ParentOf(up)) {
      folders_.insert(up);
    }
    FileDescriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd.valid()) return ErrnoStatus(errno, path);
    return std::make_unique<FileWriter>(std::move(fd), path);
  }

  absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& name) override {
    return OpenFile(absl::StrCat(temporary_, "/", name));
  }

  absl::Status Commit() override {
    for (const std::string& folder : folders_) TY_RETURN_IF_ERROR(FsyncDirectory(folder));
    TY_RETURN_IF_ERROR(RenameNew(temporary_, path_));
    committed_ = true;
    return FsyncDirectory(ParentOf(path_));
  }

 private:
  const std::string temporary_, path_;
  std::set<std::string> folders_;  // made here, to be fsynced
  bool committed_ = false;
};

class FileStore : public ObjectStore {
 public:
  absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& uri) override {
    TY_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    return OpenFile(path);
  }

  absl::StatusOr<std::string> Get(const std::string& uri, int64_t limit) override {
    TY_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    return ReadFile(path, limit);
  }

  absl::Status Put(const std::string& uri, absl::string_view data) override {
    TY_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri));
    TY_RETURN_IF_ERROR(MakeDirectories(ParentOf(path)));
    return WriteFileAtomically(path, data);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    TY_ASSIGN_OR_RETURN(const std::string path, FolderPath(folder));
    TY_ASSIGN_OR_RETURN(std::vector<std::string> names, Children(path));
    names.erase(std::remove_if(
                    names.begin(), names.end(),
                    [](const std::string& name) { return absl::StartsWith(name, kStagedPrefix); }),
                names.end());
    return names;
  }

  absl::Status Delete(const std::string& uri) override {
    TY_ASSIGN_OR_RETURN(const std::string path, FolderPath(uri));
    // One rename hides the whole folder; a crash in between leaves only a hidden rest.
    const std::string hidden =
        absl::StrCat(ParentOf(path), "/", kStagedPrefix, fs::path(path).filename().string(),
                     "-gone-", RandomHex(4));
    if (rename(path.c_str(), hidden.c_str()) != 0) {
      return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, path);
    }
    std::error_code error;
    fs::remove_all(hidden, error);
    return FromErrorCode(error, path);
  }

  absl::StatusOr<std::unique_ptr<StagedFolder>> Stage(const std::string& folder,
                                                      const std::string& tag) override {
    TY_ASSIGN_OR_RETURN(const std::string path, FolderPath(folder));
    const std::string parent = ParentOf(path);
    TY_RETURN_IF_ERROR(MakeDirectories(parent));
    const std::string temporary =
        absl::StrCat(parent, "/", kStagedPrefix, fs::path(path).filename().string(), "-", tag);
    std::error_code error;
    fs::remove_all(temporary, error);  // left by a killed writer under the same tag
    TY_RETURN_IF_ERROR(FromErrorCode(error, temporary));
    if (mkdir(temporary.c_str(), 0755) != 0) return ErrnoStatus(errno, temporary);
    return std::make_unique<FileStagedFolder>(temporary, path);
  }

  absl::Status DeleteStaged(const std::string& parent) override {
    TY_ASSIGN_OR_RETURN(const std::string path, FolderPath(parent));
    TY_ASSIGN_OR_RETURN(const std::vector<std::string> names, Children(path));
    for (const std::string& name : names) {
      if (!absl::StartsWith(name, kStagedPrefix)) continue;
      std::error_code error;
      fs::remove_all(absl::StrCat(path, "/", name), error);
      TY_RETURN_IF_ERROR(FromErrorCode(error, absl::StrCat(path, "/", name)));
    }
    return absl::OkStatus();
  }

 private:
  // Every name under `path`, sorted; none when it does not exist.
  static absl::StatusOr<std::vector<std::string>> Children(const std::string& path) {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator it(path, error);
    if (error == std::errc::no_such_file_or_directory) return names;
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    TY_RETURN_IF_ERROR(FromErrorCode(error, path));
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

std::unique_ptr<ObjectStore> MakeFileStore() { return std::make_unique<FileStore>(); }

}  // namespace trainyard
