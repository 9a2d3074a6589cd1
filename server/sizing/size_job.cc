#include "server/sizing/size_job.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/data/read_facts.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/sizing.h"
#include "executor/plan/spec/spec.h"
#include "executor/weights/start_weights.h"
#include "server/sizing/spoken_field.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

absl::Status NameDataField(const v1::JobSpec& spec, const absl::Status& status,
                           absl::string_view advice) {
  const bool named = absl::StrContains(status.message(), "spec.data");
  const std::string field = named ? "" : absl::StrCat(FieldNamedIn(spec, status.message()), ": ");
  return absl::Status(
      absl::IsUnimplemented(status) ? status.code() : absl::StatusCode::kInvalidArgument,
      absl::StrCat(field, status.message(), advice));
}

bool Unseen(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsPermissionDenied(status);
}

absl::StatusOr<plan::DataFacts> FindFacts(const v1::JobSpec& spec, FactsFrom from) {
  const plan::Windowing windowing = plan::WindowingOf(spec.model());
  if (from == FactsFrom::kSpecAlone) {
    const std::optional<plan::DataFacts> declared = data::DeclaredFacts(spec.data(), windowing);
    if (declared.has_value()) return *declared;
    return absl::InvalidArgumentError(
        "spec.data: the project's jobs run as a user of their own, whose files the server does not "
        "read: the spec must declare the sizes and classes or vocabulary of the data");
  }
  absl::StatusOr<plan::DataFacts> facts = data::ReadFacts(spec.data(), windowing);
  if (facts.ok()) return facts;
  // What the files say counts; what the spec declares serves where the server cannot look.
  if (!Unseen(facts.status())) return NameDataField(spec, facts.status(), "");
  const std::optional<plan::DataFacts> declared = data::DeclaredFacts(spec.data(), windowing);
  if (declared.has_value()) return *declared;
  return NameDataField(spec, facts.status(),
                       " (the server must be able to read the data, or the spec must declare its "
                       "sizes and classes or vocabulary)");
}

// The weights that the job begins with, where the server sees them; the worker looks again.
absl::Status CheckStart(const v1::JobSpec& spec, const plan::Plan& plan) {
  if (spec.fine_tune().from().empty()) return absl::OkStatus();
  const absl::StatusOr<weights::StartWeights> weights = weights::OpenStartWeights(spec, plan);
  if (Unseen(weights.status())) return absl::OkStatus();
  TY_RETURN_IF_ERROR(weights.status());
  if (!weights::KeepsTokens(*weights, spec, plan)) return absl::OkStatus();
  const auto tokenizer = data::TokenizerOf(spec.data());
  if (!tokenizer.ok()) return Unseen(tokenizer.status()) ? absl::OkStatus() : tokenizer.status();
  return weights::CheckTokenizer(*weights, spec, plan, tokenizer->get());
}

}  // namespace

absl::StatusOr<Sizing> SizeJob(const v1::JobSpec& spec, FactsFrom from,
                               absl::FunctionRef<void()> plans) {
  Sizing sizing;
  TY_ASSIGN_OR_RETURN(sizing.facts, FindFacts(spec, from));
  plans();
  TY_ASSIGN_OR_RETURN(plan::Plan plan, plan::PlanForAnyRanks(spec, sizing.facts));
  if (from != FactsFrom::kSpecAlone) TY_RETURN_IF_ERROR(CheckStart(spec, plan));
  sizing.summary = std::move(plan.summary);
  return sizing;
}

}  // namespace trainyard
