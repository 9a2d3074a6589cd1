#include "server/api/job_intake.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/plan/layouts.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/submission.h"
#include "server/api/wanted_range.h"
#include "storage/base/clock.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// How long a list of the nodes serves submissions; only a job that seems not to fit has them read
// again earlier.
constexpr absl::Duration kNodesKept = absl::Seconds(5);

absl::Status TooLarge(int64_t bytes, absl::string_view what) {
  return FieldError("requests", absl::StrCat(bytes, " bytes ", what),
                    absl::StrCat("at most ", kLargestBatch, " in one call; send them in several"));
}

int64_t BytesOf(const JobRecord& job) {
  size_t bytes = job.spec.size() + job.job_id.size();
  for (const auto& [key, value] : job.labels) bytes += key.size() + value.size();
  return static_cast<int64_t>(bytes);
}

// The answer to validate_only.
absl::StatusOr<v1::Job> AsIfSubmitted(JobRecord job) {
  job.uid.clear();
  TY_ASSIGN_OR_RETURN(v1::Job answer, ToProto(job));
  answer.clear_etag();
  answer.clear_state();
  answer.clear_reason();
  answer.clear_slots();
  return answer;
}

absl::StatusOr<v1::Job> Answer(const absl::StatusOr<JobRecord>& submitted) {
  TY_RETURN_IF_ERROR(submitted.status());
  return ToProto(*submitted);
}

// What `request` asks for, of a job with this resolved spec.
absl::StatusOr<std::vector<plan::JobLayout>> LayoutsAskedFor(const v1::PlanLayoutsRequest& request,
                                                             const v1::JobSpec& spec) {
  if (request.slots_size() > kMostLayouts) {
    return FieldError("slots", absl::StrCat(request.slots_size(), " numbers"),
                      absl::StrCat("at most ", kMostLayouts));
  }
  const std::vector<plan::RankGroup> groups =
      request.vary_layout() ? plan::GroupsWorthHaving(spec)
                            : std::vector<plan::RankGroup>{plan::GroupOf(spec)};
  const int64_t logical = std::max(1, spec.parallel().logical_ranks());
  int64_t in_group = 1;
  for (const plan::RankGroup& group : groups) in_group = std::max<int64_t>(in_group, group.ranks());
  const int64_t all = logical * in_group, most = std::min<int64_t>(all, kMostPlannedSlots);
  const std::string times =
      in_group == 1 ? "" : absl::StrCat(" times ", in_group, " ranks that share each");
  for (const int32_t slots : request.slots()) {
    if (slots >= 1 && slots <= most) continue;
    return FieldError("slots", slots,
                      absl::StrCat("1 to ", most,
                                   most < all ? ""
                                              : absl::StrCat(", the logical ranks of the job "
                                                             "(spec.parallel.logical_ranks)",
                                                             times)));
  }
  if (request.slots().empty()) return plan::LayoutsWorthHaving(spec, groups, most, kMostLayouts);
  std::vector<plan::JobLayout> layouts;
  for (const int32_t slots : request.slots()) {
    for (const plan::JobLayout& layout : plan::LayoutsOn(spec, groups, slots)) {
      layouts.push_back(layout);
    }
  }
  return layouts;
}

absl::Status CheckRate(const char* field, double rate) {
  if (rate >= 0 && std::isfinite(rate)) return absl::OkStatus();
  return FieldError(field, rate, "a number above 0, or 0 where it is not known");
}

v1::JobSpec WithoutAuto(const JobRecord& job) {
  v1::JobSpec spec;
  TY_CHECK(spec.ParseFromString(job.spec), "a spec that was just serialized");
  spec.mutable_parallel()->clear_auto_();
  return spec;
}

// A caller that has hung up, or whose deadline is over, may send the call again: nothing is written
// for the one that it gave up.
absl::Status CallerGone() { return absl::CancelledError("the caller has gone"); }

}  // namespace

JobIntake::Nodes JobIntake::NodesOfAMomentAgo() {
  absl::MutexLock lock(&mu_);
  return SystemClock().SinceBoot() - nodes_read_ < kNodesKept ? nodes_ : nullptr;
}

absl::StatusOr<JobIntake::Nodes> JobIntake::ReadNodes() {
  const absl::Duration now = SystemClock().SinceBoot();
  TY_ASSIGN_OR_RETURN(std::vector<NodeRecord> read, stores_.fleet().ListNodes());
  // They count as nodes that their pool could have.
  std::erase_if(read, [this](const NodeRecord& node) { return IsOfPool(pools_, node.name); });
  auto nodes = std::make_shared<const std::vector<NodeRecord>>(std::move(read));
  absl::MutexLock lock(&mu_);
  nodes_ = nodes;
  nodes_read_ = now;
  return nodes;
}

absl::Status JobIntake::CheckFitsWithPools(
    const JobRecord& job, const std::vector<NodeRecord>& nodes,
    absl::FunctionRef<std::string(int64_t)> what_fits) const {
  if (possible_.empty()) return CheckFits(job, nodes, what_fits);
  std::vector<NodeRecord> with = nodes;
  absl::Status fits;
  for (const NodeRecord& of_pool : possible_) {
    with.push_back(of_pool);
    const bool last = &of_pool == &possible_.back();
    fits = CheckFits(job, with, [&](int64_t bytes) { return last ? what_fits(bytes) : ""; });
    if (fits.ok()) return fits;
    with.pop_back();
  }
  return fits;
}

int64_t JobIntake::LargestSlotWithPools(const JobRecord& job,
                                        const std::vector<NodeRecord>& nodes) const {
  int64_t largest = LargestGangSlot(job, nodes);
  std::vector<NodeRecord> with = nodes;
  for (const NodeRecord& of_pool : possible_) {
    with.push_back(of_pool);
    largest = std::max(largest, LargestGangSlot(job, with));
    with.pop_back();
  }
  return largest;
}

// A job that fits the nodes of a moment ago is accepted without reading all nodes again.
absl::Status JobIntake::CheckFitsNodes(const JobRecord& job, const plan::DataFacts& facts,
                                       SteadyTime until) {
  const Nodes recent = NodesOfAMomentAgo();
  const auto say_nothing = [](int64_t) { return ""; };
  const bool any = recent != nullptr && (!recent->empty() || !pools_.empty());
  if (any && CheckFitsWithPools(job, *recent, say_nothing).ok()) {
    return absl::OkStatus();
  }
  TY_ASSIGN_OR_RETURN(const Nodes nodes, ReadNodes());
  return CheckFitsOn(*nodes, job, facts, until);
}

// Says what would fit, too, which takes planning.
absl::Status JobIntake::CheckFitsOn(const std::vector<NodeRecord>& nodes, const JobRecord& job,
                                    const plan::DataFacts& facts, SteadyTime until) {
  return CheckFitsWithPools(job, nodes, [&](int64_t slot_bytes) {
    v1::JobSpec spec;
    TY_CHECK(spec.ParseFromString(job.spec), "a spec that was just serialized");
    // The fewer ranks there are, the more each holds.
    spec.mutable_resources()->set_max_slots(spec.resources().min_slots());
    return sizer_.WhatFits(spec.SerializeAsString(), facts, slot_bytes, until)
        .value_or("what would fit could not be found out now");
  });
}

absl::StatusOr<Sizing> JobIntake::Size(const JobRecord& job, SteadyTime until) {
  absl::Status looked;
  TY_ASSIGN_OR_RETURN(
      const FactsFrom from,
      facts_.Of(job, absl::Now() + absl::FromChrono(until - std::chrono::steady_clock::now()),
                looked));
  const absl::StatusOr<Sizing> sizing = sizer_.Size(job.spec, until, from);
  if (sizing.ok() || looked.ok()) return sizing;
  const bool again = absl::IsUnavailable(looked) && absl::IsInvalidArgument(sizing.status());
  return absl::Status(again ? looked.code() : sizing.status().code(),
                      absl::StrCat(sizing.status().message(), "; ", looked.message()));
}

JobIntake::Plan JobIntake::MakePlan(JobRecord job, SteadyTime until) {
  Plan plan{.sizing = Size(job, until), .fits = absl::OkStatus()};
  if (!plan.sizing.ok()) return plan;
  SetSizing(job, *plan.sizing);
  plan.fits = CheckFitsNodes(job, plan.sizing->facts, until);
  return plan;
}

absl::StatusOr<JobIntake::Chosen> JobIntake::ChooseMesh(JobRecord job, SteadyTime until,
                                                        const Gone& gone) {
  Chosen chosen{.spec = WithoutAuto(job)};
  SetSpec(job, chosen.spec);
  TY_ASSIGN_OR_RETURN(chosen.sizing, Size(job, until));
  SetSizing(job, chosen.sizing);
  TY_ASSIGN_OR_RETURN(chosen.nodes, ReadNodes());
  const int64_t slot_bytes = LargestSlotWithPools(job, *chosen.nodes);
  if (slot_bytes == 0 || chosen.spec.resources().max_slots() > kMostPlannedSlots) return chosen;
  if (gone()) return CallerGone();
  absl::StatusOr<plan::ChosenMesh> mesh =
      sizer_.ChooseMesh(job.spec, chosen.sizing.facts, slot_bytes, until);
  if (!mesh.ok()) return Annotate(mesh.status(), "spec.parallel.auto");
  if (mesh->fits) {
    chosen.spec = std::move(mesh->spec);
    chosen.sizing.summary = std::move(mesh->summary);
    chosen.sizing.summary.set_chosen(mesh->why);
  } else {
    chosen.none_fits =
        absl::StrCat("spec.parallel.auto: nothing that could be ",
                     mesh->ended_early ? "planned in time" : "chosen", " fits; ", mesh->why);
  }
  return chosen;
}

JobIntake::Plan JobIntake::MakeOpenPlan(JobRecord job, SteadyTime until, const Gone& gone) {
  absl::StatusOr<Chosen> chosen = ChooseMesh(job, until, gone);
  if (!chosen.ok()) {
    return {.sizing = chosen.status(), .fits = absl::OkStatus(), .chosen = WithoutAuto(job)};
  }
  SetSpec(job, chosen->spec);
  SetSizing(job, chosen->sizing);
  absl::Status fits = CheckFitsOn(*chosen->nodes, job, chosen->sizing.facts, until);
  if (!fits.ok() && !chosen->none_fits.empty()) fits = Annotate(fits, chosen->none_fits);
  return {.sizing = std::move(chosen->sizing),
          .fits = std::move(fits),
          .chosen = std::move(chosen->spec)};
}

absl::StatusOr<SlotRange> JobIntake::CheckRange(const v1::ResizeJobRequest& request,
                                                const JobRecord& job) {
  TY_ASSIGN_OR_RETURN(WantedRange wanted, WantedRangeOf(request, job));
  SlotRange& range = wanted.range;
  if (!wanted.changes || job.state == JobState::kSucceeded) return range;  // which is refused
  JobRecord resized = job;
  resized.spec = wanted.spec.SerializeAsString();
  resized.layout.clear();  // its spec has it
  resized.min_slots = range.min_slots;
  resized.max_slots = range.max_slots;
  resized.slot_step = range.slot_step;
  resized.group_ranks = range.group_ranks;
  const Plan plan = MakePlan(std::move(resized), FromNow(kLongestPlanning));
  TY_RETURN_IF_ERROR(OfResizeRequest(plan.sizing.status()));
  TY_RETURN_IF_ERROR(OfResizeRequest(plan.fits));
  range.bytes_per_slot = plan.sizing->summary.bytes_per_slot();
  return range;
}

absl::Status JobIntake::PlanLayouts(const v1::PlanLayoutsRequest& request,
                                    const std::string& creator, const Gone& gone,
                                    v1::PlanLayoutsResponse* response) {
  const SteadyTime until = FromNow(kLongestPlanning);
  TY_RETURN_IF_ERROR(CheckRate("slot_flops_per_second", request.slot_flops_per_second()));
  TY_RETURN_IF_ERROR(CheckRate("link_bytes_per_second", request.link_bytes_per_second()));
  v1::SubmitJobRequest submission;
  *submission.mutable_job() = request.job();
  submission.set_validate_only(true);
  TY_ASSIGN_OR_RETURN(JobRecord job, CheckSubmission(submission, request.parent(), creator));
  v1::JobSpec spec;
  TY_CHECK(spec.ParseFromString(job.spec), "a spec that was just serialized");
  std::optional<Sizing> sized;
  if (spec.parallel().auto_()) {
    TY_ASSIGN_OR_RETURN(Chosen chosen, ChooseMesh(job, until, gone));
    spec = std::move(chosen.spec);
    SetSpec(job, spec);
    sized = std::move(chosen.sizing);
  }
  TY_ASSIGN_OR_RETURN(const std::vector<plan::JobLayout> asked, LayoutsAskedFor(request, spec));
  if (!sized.has_value()) {
    TY_ASSIGN_OR_RETURN(sized, Size(job, until));
  }
  const Sizing& sizing = *sized;
  SetSizing(job, sizing);
  if (gone()) return CallerGone();
  TY_ASSIGN_OR_RETURN(const std::vector<v1::LayoutPlan> layouts,
                      sizer_.PlanLayouts(job.spec, sizing.facts, asked,
                                         {.flops_per_second = request.slot_flops_per_second(),
                                          .bytes_per_second = request.link_bytes_per_second()},
                                         until));
  response->mutable_layouts()->Assign(layouts.begin(), layouts.end());
  response->set_advice(plan::AdviseOnLogicalRanks(spec));
  TY_ASSIGN_OR_RETURN(*response->mutable_job(), AsIfSubmitted(std::move(job)));
  return absl::OkStatus();
}

// The job that an earlier call made under the same request id; kNotFound: there is none.
absl::StatusOr<JobRecord> JobIntake::FindEarlier(const JobRecord& job) {
  if (job.request_id.empty()) return absl::NotFoundError("no request id");
  TY_ASSIGN_OR_RETURN(JobRecord earlier, jobs_.Get({job.project, job.job_id}));
  if (earlier.request_id != job.request_id) return absl::NotFoundError("of another request");
  return earlier;
}

absl::StatusOr<v1::Job> JobIntake::Submit(const v1::SubmitJobRequest& request,
                                          const std::string& creator, const Gone& gone) {
  Row row{.request = &request};
  TY_ASSIGN_OR_RETURN(row.job, CheckSubmission(request, request.parent(), creator));
  TY_RETURN_IF_ERROR(PlanRow(row, MakeRowPlan(row, FromNow(kLongestPlanning), gone)));
  JobRecord& job = row.job;
  if (request.validate_only()) return AsIfSubmitted(std::move(job));
  if (gone()) return CallerGone();
  absl::StatusOr<JobRecord> submitted = jobs_.Submit(job);
  if (TakenByTheSame(row, submitted.status())) submitted = jobs_.Submit(job);
  if (submitted.ok()) stores_.wakeups().Wake("queue");  // nobody can watch it yet
  return Answer(submitted);
}

absl::StatusOr<std::vector<JobIntake::Row>> JobIntake::CheckBatch(
    const v1::BatchSubmitJobsRequest& request, const std::string& creator) {
  TY_RETURN_IF_ERROR(ParseProjectName("parent", request.parent(), false).status());
  if (request.requests().empty() || request.requests_size() > kMostInBatch) {
    return FieldError("requests", request.requests_size(), absl::StrCat("1 to ", kMostInBatch));
  }
  const auto sent = static_cast<int64_t>(request.ByteSizeLong());
  if (sent > kLargestBatch) return TooLarge(sent, "as sent");
  int64_t resolved = 0;
  std::vector<Row> rows(request.requests_size());
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.request = &request.requests(static_cast<int>(i));
    const std::string& parent = row.request->parent();
    absl::StatusOr<JobRecord> job =
        parent.empty() || parent == request.parent()
            ? CheckSubmission(*row.request, request.parent(), creator)
            : absl::InvalidArgumentError(
                  absl::StrCat("parent: found '", absl::Utf8SafeCEscape(parent.substr(0, 200)),
                               "', expected '", request.parent(), "' as the call has it, or none"));
    row.refused = !job.ok();
    if (job.ok()) {
      row.job = *std::move(job);
      resolved += BytesOf(row.job);
      if (resolved > kLargestBatch) return TooLarge(resolved, "with their defaults");
    } else {
      row.answer = job.status();
    }
  }
  return rows;
}

// Other nodes may be there by now: a replay asks for what its first call got, but for what it says
// itself.
absl::Status JobIntake::TakeEarlierMesh(Row& row) {
  const absl::StatusOr<JobRecord> earlier = FindEarlier(row.job);
  if (absl::IsUnavailable(earlier.status())) return earlier.status();
  v1::JobSpec spec, stored;
  if (!earlier.ok() || !spec.ParseFromString(row.job.spec) ||
      !stored.ParseFromString(earlier->spec)) {
    return absl::OkStatus();
  }
  const v1::Parallel &said = row.request->job().spec().parallel(), &its = stored.parallel();
  v1::Parallel& ours = *spec.mutable_parallel();
  if (said.shard() == v1::Parallel::SHARD_UNSPECIFIED) ours.set_shard(its.shard());
  if (said.tensor() <= 1) ours.set_tensor(its.tensor());
  if (said.pipeline() <= 1) ours.set_pipeline(its.pipeline());
  if (plan::RanksInGroup(said) == 1) {
    ours.clear_layout();
    if (its.has_layout()) *ours.mutable_layout() = its.layout();
  }
  SetSpec(row.job, spec);
  return absl::OkStatus();
}

// Whether a call that was sent twice at the same time has got another mesh the other time, which
// `row` then asks for.
bool JobIntake::TakenByTheSame(Row& row, const absl::Status& submitted) {
  if (!row.mesh_was_chosen || !absl::IsAlreadyExists(submitted)) return false;
  const std::string before = row.job.spec;
  return TakeEarlierMesh(row).ok() && row.job.spec != before;
}

// Fills in what the plan found, or returns why the job cannot be stored. A replay of an earlier
// call needs no plan: it gets the first answer even when the files have been removed since.
absl::Status JobIntake::PlanRow(Row& row, const Plan& plan) {
  if (plan.chosen.has_value()) {
    SetSpec(row.job, *plan.chosen);
    row.mesh_was_chosen = true;
    if (!row.request->validate_only()) TY_RETURN_IF_ERROR(TakeEarlierMesh(row));
  }
  if (plan.sizing.ok()) {
    SetSizing(row.job, *plan.sizing);
    if (std::optional<Reason> waits = foretell_(row.job)) row.job.reason = *std::move(waits);
  }
  const absl::Status failure = plan.sizing.ok() ? plan.fits : plan.sizing.status();
  if (failure.ok() || row.request->validate_only()) return failure;
  const absl::StatusOr<JobRecord> earlier = FindEarlier(row.job);
  if (absl::IsUnavailable(earlier.status())) return earlier.status();
  if (!earlier.ok()) return failure;
  row.job.plan_summary = earlier->plan_summary;
  return absl::OkStatus();
}

JobIntake::Plan JobIntake::MakeRowPlan(const Row& row, SteadyTime until, const Gone& gone) {
  const bool leaves_mesh = row.request->job().spec().parallel().auto_();
  return leaves_mesh ? MakeOpenPlan(row.job, until, gone) : MakePlan(row.job, until);
}

void JobIntake::PlanBatch(std::vector<Row>& rows, const Gone& gone) {
  const SteadyTime until = FromNow(kLongestBatchPlanning);
  std::map<std::string, Plan> plans;  // by spec
  for (Row& row : rows) {
    if (row.refused) continue;
    auto plan = plans.find(row.job.spec);
    if (plan == plans.end()) {
      if (gone()) return;
      plan = plans.emplace(row.job.spec, MakeRowPlan(row, until, gone)).first;
    }
    const absl::Status planned = PlanRow(row, plan->second);
    row.refused = !planned.ok();
    if (row.refused) row.answer = planned;
  }
}

absl::StatusOr<std::vector<absl::StatusOr<v1::Job>>> JobIntake::SubmitMany(
    const v1::BatchSubmitJobsRequest& request, const std::string& creator, const Gone& gone) {
  TY_ASSIGN_OR_RETURN(std::vector<Row> rows, CheckBatch(request, creator));
  PlanBatch(rows, gone);
  if (gone()) return CallerGone();
  std::vector<Row*> stored;
  std::vector<JobRecord> jobs;
  for (Row& row : rows) {
    if (row.refused) continue;
    if (row.request->validate_only()) {
      row.answer = AsIfSubmitted(std::move(row.job));
    } else {
      stored.push_back(&row);
      jobs.push_back(std::move(row.job));
    }
  }
  std::vector<absl::StatusOr<JobRecord>> submitted = jobs_.SubmitMany(jobs);
  bool any = false;
  for (size_t i = 0; i < stored.size(); ++i) {
    stored[i]->job = std::move(jobs[i]);
    if (TakenByTheSame(*stored[i], submitted[i].status())) {
      submitted[i] = jobs_.Submit(stored[i]->job);
    }
    any = any || submitted[i].ok();
    stored[i]->answer = Answer(submitted[i]);
  }
  if (any) stores_.wakeups().Wake("queue");  // once for all
  std::vector<absl::StatusOr<v1::Job>> answers;
  answers.reserve(rows.size());
  for (Row& row : rows) answers.push_back(std::move(row.answer));
  return answers;
}

}  // namespace trainyard
