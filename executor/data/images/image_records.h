#pragma once

// Encoded images with their classes, wherever they are kept.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/files/regular_file.h"
#include "executor/data/images/skipped_records.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// A larger file is no image.
inline constexpr int64_t kMostImageBytes = int64_t{256} << 20;

// Images by number. Thread-safe.
class ImageRecords {
 public:
  virtual ~ImageRecords() = default;

  virtual int64_t size() const = 0;
  virtual int32_t label(int64_t record) const = 0;

  // What `record` is called in messages.
  virtual std::string Name(int64_t record) const = 0;

  // Reads the whole of `record` through `file`; both arguments keep their memory from call to call.
  // A message names the record.
  //   kInvalidArgument, kNotFound, kPermissionDenied, kDataLoss  this record cannot be read
  //   others                                                     the source as a whole cannot
  virtual absl::Status Read(int64_t record, RegularFile& file,
                            std::vector<uint8_t>& content) const = 0;

  // Host memory held.
  virtual int64_t bytes() const = 0;
};

// Both splits of a source.
struct ImageSource {
  std::unique_ptr<ImageRecords> train, validation;
  int64_t classes = 0;
  double share = 1;  // of the archives that was looked at; below 1 splits and classes are not known
};

// Lists the files, reads none. `folder` must come from ResolveSpec. kInvalidArgument: "FOLDER:
// found …, expected …".
absl::StatusOr<ImageSource> ListImageFolder(const v1::ImageFolderData& folder, Warnings& warnings);

// Reads the headers of all members and the classes, or of the first `members`. `webdataset` must
// come from ResolveSpec.
// kInvalidArgument: an archive that is broken, truncated or holds no sample, or no such class.
absl::StatusOr<ImageSource> IndexWebDataset(const v1::WebDatasetData& webdataset,
                                            SkippedRecords& skipped,
                                            int64_t members = std::numeric_limits<int64_t>::max());

}  // namespace trainyard::data
