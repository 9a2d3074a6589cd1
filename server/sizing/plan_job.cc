#include "server/sizing/plan_job.h"

#include <chrono>
#include <utility>
#include <vector>

#include "executor/facts/facts_message.h"
#include "executor/plan/choose.h"
#include "executor/plan/fit.h"
#include "executor/plan/layouts.h"
#include "server/sizing/frames.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// Says whether `seconds` have passed since it was made.
auto After(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  return [end] { return std::chrono::steady_clock::now() > end; };
}

absl::StatusOr<sizing::Answer> Plan(const v1::JobSpec& spec,
                                    const sizing::Question::WhatFits& asked) {
  TY_ASSIGN_OR_RETURN(const plan::DataFacts facts, facts::FromMessage(asked.facts()));
  sizing::Answer answer;
  answer.set_what_fits(plan::WhatFits(spec, facts, asked.slot_bytes()));
  return answer;
}

absl::StatusOr<sizing::Answer> Plan(const v1::JobSpec& spec,
                                    const sizing::Question::ChooseMesh& asked) {
  TY_ASSIGN_OR_RETURN(const plan::DataFacts facts, facts::FromMessage(asked.facts()));
  TY_ASSIGN_OR_RETURN(plan::ChosenMesh chosen,
                      plan::ChooseMesh(spec, facts, asked.slot_bytes(), After(asked.seconds())));
  sizing::Answer answer;
  sizing::Answer::Mesh& mesh = *answer.mutable_mesh();
  mesh.set_fits(chosen.fits);
  *mesh.mutable_spec() = std::move(chosen.spec);
  *mesh.mutable_summary() = std::move(chosen.summary);
  mesh.set_ended_early(chosen.ended_early);
  mesh.set_why(std::move(chosen.why));
  return answer;
}

absl::StatusOr<sizing::Answer> Plan(const v1::JobSpec& spec,
                                    const sizing::Question::PlanLayouts& asked) {
  TY_ASSIGN_OR_RETURN(const plan::DataFacts facts, facts::FromMessage(asked.facts()));
  std::vector<plan::JobLayout> layouts;
  for (const sizing::Layout& layout : asked.layouts()) {
    layouts.push_back({.slots = layout.slots(),
                       .group = {.tensor = layout.tensor(), .pipeline = layout.pipeline()}});
  }
  TY_ASSIGN_OR_RETURN(const std::vector<v1::LayoutPlan> plans,
                      plan::PlanLayouts(spec, facts, layouts,
                                        {.flops_per_second = asked.flops_per_second(),
                                         .bytes_per_second = asked.bytes_per_second()},
                                        After(asked.seconds())));
  sizing::Answer answer;
  answer.mutable_layouts()->mutable_layouts()->Assign(plans.begin(), plans.end());
  return answer;
}

}  // namespace

absl::StatusOr<sizing::Answer> PlanJob(const v1::JobSpec& spec, const sizing::Question& question) {
  switch (question.asks_case()) {
    case sizing::Question::kWhatFits:
      return Plan(spec, question.what_fits());
    case sizing::Question::kChooseMesh:
      return Plan(spec, question.choose_mesh());
    case sizing::Question::kPlanLayouts:
      return Plan(spec, question.plan_layouts());
    case sizing::Question::kSize:
    case sizing::Question::ASKS_NOT_SET:
      break;
  }
  return absl::InternalError("the question cannot be read");
}

}  // namespace trainyard
