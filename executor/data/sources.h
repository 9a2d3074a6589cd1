#pragma once

// What every source of data owes: facts read from its files, facts from the spec alone, and the
// open data set.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// Functions that take data of this source, as ReadFacts and DeclaredFacts (read_facts.h) and
// OpenDataset (open_dataset.h) do.
struct Source {
  using Facts = absl::StatusOr<plan::DataFacts>;
  using Declared = std::optional<plan::DataFacts>;
  using Opened = absl::StatusOr<std::unique_ptr<Dataset>>;
  Facts (*read)(const v1::Data& data, const plan::Windowing& windowing);
  Declared (*declare)(const v1::Data& data, const plan::Windowing& windowing);
  Opened (*open)(const v1::Data& data, const plan::Windowing& windowing);
};

// kInvalidArgument: `data` names none.
absl::StatusOr<Source> SourceOf(const v1::Data& data);

}  // namespace trainyard::data
