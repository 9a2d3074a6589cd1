#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "executor/engine/run.h"
#include "storage/base/file.h"

namespace trainyard::worker {

// All that a run reports, a line of JSON (RFC 8259) each:
// {"step":1,"split":"train","loss":4.17,...}. Numbers keep all their digits; one that is not finite
// is null. Lines are added to what the file has: of a step that was made again after a restart the
// last line counts.
class MetricsFile {
 public:
  // Makes the folder that it is in. kPermissionDenied and the like name the file.
  static absl::StatusOr<MetricsFile> Open(const std::string& path);

  absl::Status Add(int64_t step, engine::RunObserver::Split split,
                   const std::map<std::string, double>& values);

 private:
  MetricsFile(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  FileDescriptor file_;
};

}  // namespace trainyard::worker
