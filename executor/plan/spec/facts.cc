#include "executor/plan/spec/facts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/enum_names.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kLargestSteps = 4294967295;  // counters of random draws wrap past it

}  // namespace

const char* NameOf(DataFacts::Kind kind) {
  constexpr std::pair<DataFacts::Kind, const char*> kNames[] = {
      {DataFacts::Kind::kImages, "images"},
      {DataFacts::Kind::kTokens, "tokens"},
      {DataFacts::Kind::kDocuments, "documents"},
      {DataFacts::Kind::kClicks, "clicks"}};
  return NameIn(kNames, kind).data();  // of a literal
}

absl::Status CheckFacts(const DataFacts& facts) {
  if (facts.kind == DataFacts::Kind::kTokens || facts.kind == DataFacts::Kind::kDocuments) {
    if (facts.vocab > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "spec.data: the number of tokens in the vocabulary is unknown");
  }
  if (facts.kind == DataFacts::Kind::kClicks) {
    if (facts.dense > 0 && facts.categorical > 0 && facts.buckets > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("spec.data: clicks with ", facts.dense, " dense and ", facts.categorical,
                     " categorical features of ", facts.buckets, " values cannot be trained on"));
  }
  const bool channels = facts.channels > 0 && facts.channels <= kMostChannels;
  if (facts.height > 0 && facts.width > 0 && channels && facts.classes > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("spec.data: images of ", facts.height, "x",
                                                 facts.width, "x", facts.channels, " with ",
                                                 facts.classes, " classes cannot be trained on"));
}

absl::StatusOr<int64_t> TotalSteps(const v1::JobSpec& spec, const DataFacts& facts) {
  if (spec.training().steps() > 0) return spec.training().steps();
  if (facts.train_size <= 0) {
    return absl::InvalidArgumentError(
        "spec.training.epochs: the size of the data is unknown here; set spec.training.steps");
  }
  double samples = static_cast<double>(facts.train_size);
  if (facts.kind == DataFacts::Kind::kTokens) samples /= ContextOf(spec.model());
  const double steps =
      std::max(1.0, std::ceil(spec.training().epochs() * samples / spec.training().batch_size()));
  if (steps > static_cast<double>(kLargestSteps)) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.training.epochs: ", spec.training().epochs(), " makes ", steps,
                     " steps; at most ", kLargestSteps));
  }
  return static_cast<int64_t>(steps);
}

}  // namespace trainyard::plan
