#include "executor/facts/look.h"

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/data/read_facts.h"
#include "executor/facts/spoken_field.h"
#include "executor/plan/spec/spec.h"
#include "executor/weights/start_weights.h"
#include "storage/base/status.h"

namespace trainyard::facts {
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

}  // namespace

absl::StatusOr<plan::DataFacts> Look(const v1::JobSpec& spec, absl::string_view who, bool& unseen) {
  const plan::Windowing windowing = plan::WindowingOf(spec.model());
  absl::StatusOr<plan::DataFacts> facts = data::ReadFacts(spec.data(), windowing);
  unseen = Unseen(facts.status());
  if (facts.ok()) return facts;
  // What the files say counts; what the spec declares serves where nobody can look.
  if (!unseen) return NameDataField(spec, facts.status(), "");
  const std::optional<plan::DataFacts> declared = data::DeclaredFacts(spec.data(), windowing);
  if (declared.has_value()) return *declared;
  return NameDataField(spec, facts.status(),
                       absl::StrCat(" (", who,
                                    " must be able to read the data, or the spec must declare its "
                                    "sizes and classes or vocabulary)"));
}

absl::StatusOr<plan::DataFacts> Declared(const v1::JobSpec& spec, absl::string_view why) {
  const std::optional<plan::DataFacts> declared =
      data::DeclaredFacts(spec.data(), plan::WindowingOf(spec.model()));
  if (declared.has_value()) return *declared;
  return absl::InvalidArgumentError(why);
}

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

}  // namespace trainyard::facts
