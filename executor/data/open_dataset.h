#pragma once

// From the spec of data to an open data set, whatever its source.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// Opens the files of `data` (from ResolveSpec). `windowing` is for text and tokens. IDX images,
// text and tables of clicks are read whole, and text is encoded; token files, image folders and
// archives are read at Fill. Fails as ReadFacts does, and for what only a whole reading shows:
// truncated gzip, counts that differ, labels out of range.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::Data& data,
                                                     const plan::Windowing& windowing);
inline absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::Data& data, int64_t context) {
  return OpenDataset(data, plan::Windowing{.context = context});
}

}  // namespace trainyard::data
