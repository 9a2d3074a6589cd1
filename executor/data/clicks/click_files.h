#pragma once

// Tables of clicks in text files, a row per line: what CSV and Criteo TSV share.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/files/line_reader.h"

namespace trainyard::data {

// Reads a row from its line, which it may change. An error says what was found and expected; file
// and line are added to it.
using ParseRow =
    std::function<absl::Status(std::string& line, float* dense, int32_t* ids, bool& click)>;

struct ClickFiles {
  std::string train;
  std::string validation;  // "": validation_fraction is cut from the end of train
  double validation_fraction = 0;
  bool skip_bad_records = false;
  plan::DataFacts shape;  // without sizes
  // Called once per file, before its first row: may take a header.
  std::function<absl::StatusOr<ParseRow>(LineReader& lines)> open;
};

// Reads all files; kInvalidArgument: "FILE: line 7: found 39 fields, expected 40".
absl::StatusOr<plan::DataFacts> ClickFileFacts(const ClickFiles& files);
absl::StatusOr<std::unique_ptr<Dataset>> OpenClickFiles(const ClickFiles& files);

// Where a hash, mixed anew (the finaliser of MurmurHash3), lies in [0, buckets).
int32_t Bucket(uint64_t hash, int64_t buckets);

// "0" or "1".
absl::Status ParseClick(absl::string_view field, bool& click);

}  // namespace trainyard::data
