#include "executor/engine/restore.h"

#include <optional>
#include <utility>

#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/checkpoint/config.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

bool Broken(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

}  // namespace

absl::StatusOr<ChosenCheckpoint> ChooseCheckpoint(ObjectStore& store, const RestorePoint& wanted,
                                                  const v1::JobSpec& spec) {
  absl::StatusOr<Checkpoint> first = Checkpoint::Open(store, wanted.uri, wanted.manifest_sha256);
  if (first.ok()) return ChosenCheckpoint{.checkpoint = *std::move(first)};
  if (!Broken(first.status())) return WithFault(Fault::kStorage, first.status());

  absl::StatusOr<Checkpoint> anew = Checkpoint::Open(store, wanted.uri, "");
  if (anew.ok() && SpecDigest(anew->config.spec) == SpecDigest(spec)) {
    return ChosenCheckpoint{
        *std::move(anew),
        {},
        {absl::StrCat(first.status().message(), "; it is whole and of this job, and is used")}};
  }

  const size_t slash = wanted.uri.rfind('/');
  const std::optional<int64_t> wanted_step = ParseStepFolder(wanted.uri.substr(slash + 1));
  if (!wanted_step) return WithFault(Fault::kStorage, first.status());
  const std::string root = wanted.uri.substr(0, slash);
  std::vector<int64_t> damaged = {*wanted_step};
  std::vector<std::string> warnings = {
      absl::StrCat("cannot restore step ", *wanted_step, ": ", first.status().message())};
  TY_ASSIGN_OR_FAULT(Fault::kStorage, const std::vector<int64_t> steps, ListSteps(store, root));
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (*step >= *wanted_step) continue;
    absl::StatusOr<Checkpoint> older =
        Checkpoint::Open(store, absl::StrCat(root, "/", StepFolder(*step)), "");
    if (older.ok()) {
      warnings.push_back(absl::StrCat("going on from the older checkpoint of step ", *step));
      return ChosenCheckpoint{*std::move(older), std::move(damaged), std::move(warnings)};
    }
    if (!Broken(older.status())) return WithFault(Fault::kStorage, older.status());
    damaged.push_back(*step);
    warnings.push_back(absl::StrCat("cannot restore step ", *step, ": ", older.status().message()));
  }
  return WithFault(
      Fault::kStorage,
      Annotate(first.status(), "the checkpoint is damaged, and no older one is whole"));
}

absl::Status DeleteAbandoned(ObjectStore& store, const Checkpoint& restored) {
  const std::string root = restored.uri.substr(0, restored.uri.rfind('/'));
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(store, root));
  for (const int64_t step : steps) {
    if (step <= restored.step) continue;
    const std::string uri = absl::StrCat(root, "/", StepFolder(step));
    const absl::StatusOr<StateFile> state = ReadState(store, uri);
    if (!state.ok() && !Broken(state.status())) return state.status();
    if (!state.ok() || state->run.skips == restored.run.skips) continue;
    TY_RETURN_IF_ERROR(store.Delete(uri));
  }
  return absl::OkStatus();
}

absl::Status CheckFits(const Checkpoint& checkpoint, const v1::JobSpec& spec,
                       const data::Dataset& dataset) {
  if (SpecDigest(checkpoint.config.spec) != SpecDigest(spec)) {
    return WithFault(Fault::kSpec, absl::FailedPreconditionError(
                                       absl::StrCat(checkpoint.uri, " belongs to another spec: ",
                                                    SpecDifference(checkpoint.config.spec, spec))));
  }
  const auto other_data = [&](const std::string& before, const std::string& now) {
    return WithFault(Fault::kData, absl::FailedPreconditionError(absl::StrCat(
                                       "the data is not what ", checkpoint.uri,
                                       " was trained on: it was ", before, " and is ", now)));
  };
  if (!SameFacts(checkpoint.config.facts, dataset.facts())) {
    return other_data(FactsToText(checkpoint.config.facts), FactsToText(dataset.facts()));
  }
  if (dataset.tokenizer() == nullptr) return absl::OkStatus();
  const data::NamedText tokenizer = dataset.tokenizer()->Files()[0];
  if (checkpoint.tokenizer.text != tokenizer.text) {
    return other_data("in tokens of its " + checkpoint.tokenizer.name, "in those of another one");
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
