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
#include "absl/strings/strip.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

constexpr char kStagedPrefix[] = ".tmp-";
constexpr char kReplacedPrefix[] = ".old-";

absl::Status FromErrorCode(const std::error_code& error, const std::string& what) {
  return error ? ErrnoStatus(error.value(), what) : absl::OkStatus();
}

absl::StatusOr<std::string> FolderPath(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(std::string path, LocalPath(uri));
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string ParentOf(const std::string& path) { return fs::path(path).parent_path().string(); }

// A hidden place beside `path`: its name with `prefix` before it.
std::string BesideOf(const std::string& path, const char* prefix) {
  return absl::StrCat(ParentOf(path), "/", prefix, fs::path(path).filename().string());
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return FromErrorCode(error, path);
}

class FileReader : public ObjectReader {
 public:
  FileReader(FileDescriptor fd, int64_t size, std::string path)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)) {}

  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, size_t bytes, void* to) override {
    return ReadExactly(fd_.get(), offset, bytes, to, path_);
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
    // committed folder is never empty.
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  }
  if (errno == EEXIST || errno == ENOTEMPTY) {
    return absl::AlreadyExistsError(absl::StrCat(to, ": exists already"));
  }
  return ErrnoStatus(errno, to);
}

// Renames the folder `from` to `to`, where another folder is. When this returns OK, that one is at
// `from` or removed.
absl::Status RenameOver(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  if (errno == ENOENT) return RenameNew(from, to);
  if (errno != EINVAL && errno != ENOSYS) return ErrnoStatus(errno, to);
  const std::string old = BesideOf(to, kReplacedPrefix);
  TY_RETURN_IF_ERROR(RemoveAll(old));
  if (rename(to.c_str(), old.c_str()) != 0) return ErrnoStatus(errno, to);
  TY_RETURN_IF_ERROR(RenameNew(from, to));
  return RemoveAll(old);
}

class FileStagedFolder : public StagedFolder {
 public:
  FileStagedFolder(std::string temporary, std::string path)
      : temporary_(std::move(temporary)), path_(std::move(path)), folders_{temporary_} {}

  ~FileStagedFolder() override {
    std::error_code ignored;  // DeleteStaged removes what is left
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
    TY_RETURN_IF_ERROR(FsyncFolders());
    TY_RETURN_IF_ERROR(RenameNew(temporary_, path_));
    committed_ = true;
    return FsyncDirectory(ParentOf(path_));
  }

  absl::Status Replace() override {
    TY_RETURN_IF_ERROR(FsyncFolders());
    TY_RETURN_IF_ERROR(RenameOver(temporary_, path_));
    committed_ = true;
    TY_RETURN_IF_ERROR(FsyncDirectory(ParentOf(path_)));
    return RemoveAll(temporary_);  // now the old one, if it is still there
  }

 private:
  absl::Status FsyncFolders() {
    for (const std::string& folder : folders_) TY_RETURN_IF_ERROR(FsyncDirectory(folder));
    return absl::OkStatus();
  }

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
    std::erase_if(names, [](const std::string& name) {
      return absl::StartsWith(name, kStagedPrefix) || absl::StartsWith(name, kReplacedPrefix);
    });
    return names;
  }

  absl::Status Delete(const std::string& uri) override {
    TY_ASSIGN_OR_RETURN(const std::string path, FolderPath(uri));
    // One rename hides the whole folder; a crash in between leaves only a hidden rest.
    const std::string hidden = absl::StrCat(BesideOf(path, kStagedPrefix), "-gone-", RandomHex(4));
    if (rename(path.c_str(), hidden.c_str()) != 0) {
      return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, path);
    }
    return RemoveAll(hidden);
  }

  absl::StatusOr<std::unique_ptr<StagedFolder>> Stage(const std::string& folder,
                                                      const std::string& tag) override {
    TY_ASSIGN_OR_RETURN(const std::string path, FolderPath(folder));
    TY_RETURN_IF_ERROR(MakeDirectories(ParentOf(path)));
    const std::string temporary = absl::StrCat(BesideOf(path, kStagedPrefix), "-", tag);
    TY_RETURN_IF_ERROR(RemoveAll(temporary));  // left by a killed writer under the same tag
    if (mkdir(temporary.c_str(), 0755) != 0) return ErrnoStatus(errno, temporary);
    return std::make_unique<FileStagedFolder>(temporary, path);
  }

  absl::Status DeleteStaged(const std::string& parent) override {
    TY_ASSIGN_OR_RETURN(const std::string path, FolderPath(parent));
    TY_ASSIGN_OR_RETURN(const std::vector<std::string> names, Children(path));
    for (const std::string& name : names) {
      const std::string hidden = absl::StrCat(path, "/", name);
      absl::string_view replaced = name;
      if (absl::ConsumePrefix(&replaced, kReplacedPrefix)) {
        TY_RETURN_IF_ERROR(BringBack(hidden, absl::StrCat(path, "/", replaced)));
      } else if (absl::StartsWith(name, kStagedPrefix)) {
        TY_RETURN_IF_ERROR(RemoveAll(hidden));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Renames a folder that was about to be replaced back to its place; removes it if the place is
  // taken.
  static absl::Status BringBack(const std::string& hidden, const std::string& path) {
    const absl::Status back = RenameNew(hidden, path);
    if (absl::IsAlreadyExists(back)) return RemoveAll(hidden);
    return back.ok() ? FsyncDirectory(ParentOf(path)) : back;
  }

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
