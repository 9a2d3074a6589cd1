#pragma once

// manifest.json of a checkpoint: what must be there, to the byte.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/base/arithmetic.h"
#include "storage/objects/object_store.h"

namespace trainyard::engine {

struct ManifestFile {
  std::string name;  // relative to the folder
  int64_t bytes = 0;
  std::string sha256;
};

struct Manifest {
  int64_t step = 0;
  std::string spec_digest;
  std::string weights_sha256;
  std::map<std::string, double> metrics;  // of the held-out split, if evaluated; finite
  Arithmetic arithmetic;  // that the last step before it was computed with; empty: unknown
  std::vector<ManifestFile> files;  // all but the manifest itself
  std::string sha256;               // of the JSON that it was read from; not in it

  int64_t bytes() const;  // of `files`
};

std::string ManifestToJson(const Manifest& manifest);

// kDataLoss: not a manifest, or a file name that is not one of a checkpoint's.
absl::StatusOr<Manifest> ManifestFromJson(absl::string_view json);

// Reads every file back and compares size and digest; kDataLoss names the first that differs.
using OpenFile =
    std::function<absl::StatusOr<std::unique_ptr<ObjectReader>>(const std::string& name)>;
absl::Status VerifyFile(const ManifestFile& file, const OpenFile& open);  // one of them
absl::Status VerifyFiles(const Manifest& manifest, const OpenFile& open);

}  // namespace trainyard::engine
