#include "server/sizing/size_job.h"

#include <utility>

#include "executor/facts/look.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/sizing.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

absl::StatusOr<plan::DataFacts> FactsOf(const v1::JobSpec& spec, const FactsFrom& from) {
  if (from.found.has_value()) return *from.found;
  if (from.spec_alone) {
    return facts::Declared(
        spec,
        "spec.data: the project's jobs run as a user of their own, whose files the server does not "
        "read: the spec must declare the sizes and classes or vocabulary of the data");
  }
  bool unseen = false;
  return facts::Look(spec, "the server", unseen);
}

}  // namespace

absl::StatusOr<Sizing> SizeJob(const v1::JobSpec& spec, const FactsFrom& from,
                               absl::FunctionRef<void()> plans) {
  Sizing sizing;
  TY_ASSIGN_OR_RETURN(sizing.facts, FactsOf(spec, from));
  plans();
  TY_ASSIGN_OR_RETURN(plan::Plan plan, plan::PlanForAnyRanks(spec, sizing.facts));
  const bool looks = !from.spec_alone && !from.found.has_value();
  if (looks) TY_RETURN_IF_ERROR(facts::CheckStart(spec, plan));
  sizing.summary = std::move(plan.summary);
  return sizing;
}

}  // namespace trainyard
