#pragma once

// What the checks of several sources of data share; parts of ResolveData.

#include <string>

#include "absl/status/status.h"
#include "executor/plan/spec/checks.h"
#include "storage/base/status.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

absl::Status ResolveImageFolder(v1::ImageFolderData& folder);
absl::Status ResolveWebDataset(v1::WebDatasetData& webdataset);

// Files of one split.
inline constexpr int kMostShards = 100000;

// An absolute path or file:///path. Other schemes are understood, but nothing reads them yet.
absl::Status CheckUri(const std::string& field, const std::string& uri);

// `at` is where the source lives ("spec.data.csv."), `held_out` the field that names files of the
// held-out split, "" when it names none.
template <typename Source>
absl::Status ResolveValidationFraction(const std::string& at, const std::string& held_out,
                                       Source& source) {
  if (!held_out.empty()) {
    if (!source.has_validation_fraction()) return absl::OkStatus();
    return Invalid(at + "validation_fraction", held_out,
                   " is the held-out split already; give one of the two");
  }
  if (!source.has_validation_fraction()) source.set_validation_fraction(0.1);
  if (source.validation_fraction() > 0 && source.validation_fraction() <= 0.5) {
    return absl::OkStatus();
  }
  return Invalid(at + "validation_fraction", source.validation_fraction(), " is not in (0, 0.5]");
}

template <typename Source>
absl::Status ResolveBadRecords(const std::string& at, v1::BadRecords standard, Source& source) {
  if (source.bad_records() == v1::BAD_RECORDS_UNSPECIFIED) source.set_bad_records(standard);
  return CheckChoice(at + "bad_records", source.bad_records(),
                     "choice; use REFUSE_BAD_RECORDS or SKIP_BAD_RECORDS");
}

}  // namespace trainyard::plan
