#pragma once

// Local files as sources of data: hostile until shown otherwise.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/file.h"

namespace trainyard::data {

// The path of an absolute path or a file:// URI. kUnimplemented names any other scheme.
absl::StatusOr<std::string> LocalPath(const std::string& uri);

struct RegularFile {
  std::string path;
  FileDescriptor fd;
  int64_t bytes = 0;
};

// Opens what `uri` names for reading. Anything but a regular file (a folder, a pipe, a device) is
// kInvalidArgument and is never waited for.
absl::StatusOr<RegularFile> OpenRegularFile(const std::string& uri);

// The same for file.path, which is no URI; what was open is closed. Allocates nothing.
absl::Status OpenPath(RegularFile& file);

// From now on `observer` is told of each file and folder that this process is about to open for its
// data, by path: who may be ended in the middle tells others so where it was. Once, before there
// are other threads.
void ObserveOpens(void (*observer)(const std::string& path));

// For who opens by other means.
void TellOfOpen(const std::string& path);

// All of the file `path`, which is no URI. kInvalidArgument: more than `most` bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t most);

// Reads exactly `bytes` at `offset`; kDataLoss when the file ends before.
absl::Status ReadExactly(const RegularFile& file, int64_t offset, void* to, int64_t bytes);

}  // namespace trainyard::data
