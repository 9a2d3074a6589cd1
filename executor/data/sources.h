#pragma once

// One pair of functions per source of data; read_facts.cc and dataset.cc choose among them.

#include <memory>

#include "absl/status/statusor.h"
#include "executor/data/dataset.h"
#include "executor/plan/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

absl::StatusOr<plan::DataFacts> ImageFacts(const v1::IdxData& idx);
absl::StatusOr<std::unique_ptr<Dataset>> OpenImages(const v1::IdxData& idx);

absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& text);
absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& text, int64_t context);

absl::StatusOr<plan::DataFacts> TokenFacts(const v1::TokenData& tokens);
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const v1::TokenData& tokens, int64_t context);

}  // namespace trainyard::data
