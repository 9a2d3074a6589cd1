#pragma once

// Objects under URIs: what checkpoints and data sets are read from and written to. `/abs/path` and
// file:///abs/path are built; s3://, http:// and https:// are kUnimplemented by name.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Reads one object at any place. Thread-safe.
class ObjectReader {
 public:
  virtual ~ObjectReader() = default;
  virtual int64_t size() const = 0;

  // Fills exactly `bytes`; kOutOfRange when the object ends before that.
  virtual absl::Status Read(int64_t offset, size_t bytes, void* to) = 0;
};

// Writes one object from front to back. Used by one thread. Destroyed unfinished: nothing is
// promised about what was written.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  virtual absl::Status Append(absl::string_view data) = 0;

  // Call once, last; the object is durable when this returns OK.
  virtual absl::Status Finish() = 0;
};

// A folder that nobody sees before Commit. Used by one thread. Destroyed uncommitted: it is
// removed.
class StagedFolder {
 public:
  virtual ~StagedFolder() = default;

  // `name` may hold slashes. The writer must be finished before Commit.
  virtual absl::StatusOr<std::unique_ptr<ObjectWriter>> Create(const std::string& name) = 0;
  virtual absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& name) = 0;

  // Makes the folder visible, whole and durable. kAlreadyExists: another one is there; it stays.
  virtual absl::Status Commit() = 0;

  // Like Commit, but replaces a folder that is there, if one is. A process that is killed meanwhile
  // leaves the old folder or the new one, whole (at the latest once DeleteStaged was called).
  virtual absl::Status Replace() = 0;
};

// Thread-safe. A full disk is kResourceExhausted, a missing object kNotFound, missing rights
// kPermissionDenied; the message names the object.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  virtual absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& uri) = 0;

  // The whole object; one larger than `limit` is kResourceExhausted.
  virtual absl::StatusOr<std::string> Get(const std::string& uri, int64_t limit) = 0;

  // Readers see the old content or the new one. Makes the folders above.
  virtual absl::Status Put(const std::string& uri, absl::string_view data) = 0;

  // Names directly under the folder, sorted, staged ones left out. A missing folder is empty.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;

  // Removes an object, or a folder and all below it. A missing one is OK. A folder disappears at
  // once, also to readers that list it while its files are being removed.
  virtual absl::Status Delete(const std::string& uri) = 0;

  // Begins a folder that becomes `folder` on commit; `tag` tells writers of the same folder apart.
  virtual absl::StatusOr<std::unique_ptr<StagedFolder>> Stage(const std::string& folder,
                                                              const std::string& tag) = 0;

  // Removes what was staged under `parent` and never committed, whoever staged it, and puts folders
  // that were about to be replaced back in their places. Only for a caller that knows that no other
  // writer is at work there.
  virtual absl::Status DeleteStaged(const std::string& parent) = 0;
};

// The store that serves `uri`: kInvalidArgument for an unknown scheme or a path that is not
// absolute.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const std::string& uri);

// The local path behind `/abs/path` or file:///abs/path; other schemes as in OpenObjectStore.
absl::StatusOr<std::string> LocalPath(const std::string& uri);

}  // namespace trainyard
