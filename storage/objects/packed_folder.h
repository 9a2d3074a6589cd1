#pragma once

// A folder packed into one file, which needs no name: what one process leaves in memory (memfd) for
// another to read.
//
//   the files, one behind the other | JSON: {"name": [offset, bytes], …} | bytes of the JSON, as a
//   little-endian uint64 | "TYFOLDER"
//
// The end is written last: a file without it holds no folder.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/file.h"
#include "storage/objects/object_store.h"

namespace trainyard {

// Where a file lies in the packed one.
struct PackedFile {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Writes a folder to a file from its beginning on. Nothing of it is synchronized with a disk. Used
// by one thread; one file is written at a time.
class PackedFolderWriter : public StagedFolder {
 public:
  // Empties the file behind `fd`, which must outlive the writer. `most_bytes`: with more than that
  // it fails with kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<PackedFolderWriter>> Begin(int fd, int64_t most_bytes);

  // Empties the file, unless it was committed.
  ~PackedFolderWriter() override;

  absl::StatusOr<std::unique_ptr<ObjectWriter>> Create(const std::string& name) override;
  // kUnimplemented: what is packed is read once it is whole.
  absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& name) override;
  absl::Status Commit() override;
  absl::Status Replace() override { return Commit(); }

 private:
  class Writer;

  PackedFolderWriter(int fd, int64_t most_bytes) : fd_(fd), most_bytes_(most_bytes) {}
  absl::Status Append(absl::string_view data);

  const int fd_;
  const int64_t most_bytes_;
  int64_t written_ = 0;
  bool committed_ = false;
  std::map<std::string, PackedFile> files_;
};

// The folder in such a file, for reading: whatever changes something is kUnimplemented.
// Thread-safe. What is in the file is not believed: files that do not lie in it are kDataLoss.
class PackedFolder : public ObjectStore {
 public:
  // `name`: the URI of the folder; its files are `name`/x. kNotFound: the file is empty.
  static absl::StatusOr<std::unique_ptr<PackedFolder>> Open(FileDescriptor file, std::string name);

  int64_t bytes() const { return bytes_; }  // of the whole file

  absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& uri) override;
  absl::StatusOr<std::string> Get(const std::string& uri, int64_t limit) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;
  absl::Status Put(const std::string& uri, absl::string_view data) override;
  absl::Status Delete(const std::string& uri) override;
  absl::StatusOr<std::unique_ptr<StagedFolder>> Stage(const std::string& folder,
                                                      const std::string& tag) override;
  absl::Status DeleteStaged(const std::string& parent) override;

 private:
  PackedFolder(FileDescriptor file, std::string name, int64_t bytes,
               std::map<std::string, PackedFile> files)
      : file_(std::make_shared<FileDescriptor>(std::move(file))),
        name_(std::move(name)),
        bytes_(bytes),
        files_(std::move(files)) {}

  const std::shared_ptr<FileDescriptor> file_;  // readers may outlive the folder
  const std::string name_;
  const int64_t bytes_;
  const std::map<std::string, PackedFile> files_;
};

}  // namespace trainyard
