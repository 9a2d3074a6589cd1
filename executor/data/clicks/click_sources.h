#pragma once

// What each source of clicks offers; executor/data/sources.cc chooses among them.

#include <memory>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// ...Shape: facts without sizes, known from the spec alone.
plan::DataFacts CsvShape(const v1::CsvData& csv);
absl::StatusOr<plan::DataFacts> CsvFacts(const v1::CsvData& csv);
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::CsvData& csv);

plan::DataFacts CriteoShape(const v1::CriteoData& criteo);
absl::StatusOr<plan::DataFacts> CriteoFacts(const v1::CriteoData& criteo);
absl::StatusOr<std::unique_ptr<Dataset>> OpenCriteo(const v1::CriteoData& criteo);

plan::DataFacts ClicksFacts(const v1::ClicksData& clicks);
std::unique_ptr<Dataset> OpenClicks(const v1::ClicksData& clicks);

}  // namespace trainyard::data
