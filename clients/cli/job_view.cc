#include "clients/cli/job_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "clients/cli/format.h"
#include "clients/cli/progress.h"
#include "clients/cli/shown.h"
#include "clients/cli/table.h"

namespace trainyard::cli {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

std::string Steps(const v1::Job& job) {
  if (job.total_steps() == 0) return FormatCount(job.step());
  return absl::StrCat(FormatCount(job.step()), "/", FormatCount(job.total_steps()));
}

// How long the job ran, or has run so far.
std::string RunTime(const v1::Job& job, absl::Time now) {
  if (!job.has_start_time()) return "-";
  const absl::Time end = job.has_end_time() ? TimeOf(job.end_time()) : now;
  return FormatClock(end - TimeOf(job.start_time()));
}

std::string Why(const v1::Job& job) {
  return job.state() == v1::FAILED && !job.failure().message().empty() ? job.failure().message()
                                                                       : job.reason().message();
}

// "3 (1 to 8)"; "2" of a job that has as many as it may have.
std::string SlotsText(const v1::Job& job) {
  if (job.max_slots() == 0) return "-";  // a server of before
  const bool fixed = job.min_slots() == job.max_slots();
  if (fixed && (job.slots() == 0 || job.slots() == job.max_slots())) {
    return absl::StrCat(job.max_slots());
  }
  return absl::StrCat(job.slots(), " (", job.min_slots(),
                      fixed ? "" : absl::StrCat(" to ", job.max_slots()), ")");
}

void AddTime(const char* label, bool present, const google::protobuf::Timestamp& time,
             Fields& fields) {
  if (present) fields.emplace_back(label, FormatWhen(TimeOf(time)));
}

}  // namespace

std::string RenderJobs(const Terminal& terminal, const std::vector<v1::Job>& jobs, bool wide,
                       absl::Time now) {
  std::vector<std::string> header = {"JOB", "STATE", "STEP", "TIME", "AGE"};
  if (wide) {
    for (const char* column :
         {"ATTEMPT", "RESTARTS", "PRIORITY", "SLOTS", "PARAMETERS", "CREATOR", "CODE"}) {
      header.push_back(column);
    }
  }
  header.push_back("REASON");
  Table table(header);
  for (const int column : {2, 3, 4}) table.AlignRight(column);
  for (const v1::Job& raw : jobs) {
    const v1::Job job = Shown(raw);
    std::vector<std::string> row = {job.job_id(), PaintedState(terminal, job.state()), Steps(job),
                                    RunTime(job, now), FormatAge(now - TimeOf(job.create_time()))};
    if (wide) {
      row.push_back(absl::StrCat(job.attempt()));
      row.push_back(absl::StrCat(job.restarts()));
      row.push_back(absl::StrCat(job.priority()));
      row.push_back(SlotsText(job));
      row.push_back(FormatCount(job.plan().parameters()));
      row.push_back(job.creator());
      row.push_back(job.reason().code());
    }
    row.push_back(Why(job));
    table.Add(std::move(row));
  }
  return table.Render(terminal);
}

std::string RanksText(const v1::JobSpec& spec) {
  const int slots = std::max(1, spec.resources().min_slots());
  const int most = std::max(slots, spec.resources().max_slots());
  const int logical = spec.parallel().has_logical_ranks() ? spec.parallel().logical_ranks() : slots;
  const int stages = std::max(1, spec.parallel().layout().pipeline());
  const int tensor = std::max(1, spec.parallel().layout().tensor());
  if (const int sharing = stages * tensor; sharing > 1) {
    if (most > slots) {
      return absl::StrCat(slots, " to ", most, " in groups of ", sharing, ", which share ", logical,
                          " logical ranks");
    }
    const int groups = std::max(1, slots / sharing);
    const int fewest = logical / groups, hosts = (logical + groups - 1) / groups;
    const std::string share = spec.parallel().layout().sequence()
                                  ? " share the shards and tokens of "
                                  : " share the shards of ";
    const int chunks = std::max(1, spec.parallel().layout().chunks());
    const std::string staged = absl::StrCat(
        " are ", stages, " stages", chunks > 1 ? absl::StrCat(" of ", chunks, " chunks each") : "");
    const std::string what =
        stages == 1   ? share
        : tensor == 1 ? absl::StrCat(staged, chunks > 1 ? ", of " : " of ")
                      : absl::StrCat(staged, chunks > 1 ? ", of " : " of ", tensor, " that", share);
    return absl::StrCat(slots, slots > sharing ? ", of which each " : ", of which ", sharing, what,
                        fewest, hosts > fewest ? absl::StrCat(" or ", hosts) : "",
                        hosts == 1 ? " logical rank" : " logical ranks");
  }
  if (logical == 1) return "";
  if (most > slots) {
    return absl::StrCat(slots, " to ", most, ", which share ", logical, " logical ranks");
  }
  if (logical == slots) return absl::StrCat(slots, ", a logical rank each");
  const int fewest = logical / slots, hosts = (logical + slots - 1) / slots;
  return absl::StrCat(
      slots, slots == 1 ? ", with all " : ", each with ", fewest,
      hosts > fewest ? absl::StrCat(" or ", hosts) : "",
      slots == 1 ? " logical ranks" : absl::StrCat(" of the ", logical, " logical ranks"));
}

namespace {

// The spec with what ResizeJob may have changed since.
v1::JobSpec SpecOfNow(const v1::Job& job) {
  v1::JobSpec spec = job.spec();
  if (job.shard() == v1::Parallel::SHARD_UNSPECIFIED) return spec;  // a server of before
  spec.mutable_resources()->set_min_slots(job.min_slots());
  spec.mutable_resources()->set_max_slots(job.max_slots());
  spec.mutable_parallel()->set_shard(job.shard());
  *spec.mutable_parallel()->mutable_layout() = job.layout();
  return spec;
}

}  // namespace

std::string RenderJob(const Terminal& terminal, const v1::Job& raw, absl::Time now) {
  const v1::Job job = Shown(raw);
  Fields fields = {{"job", job.name()},
                   {"state", PaintedState(terminal, job.state())},
                   {"reason", absl::StrCat(job.reason().message(), " (", job.reason().code(), ")")},
                   {"step", Steps(job)},
                   {"run time", RunTime(job, now)},
                   {"attempt", absl::StrCat(job.attempt(), ", ", job.restarts(), " restarts")},
                   {"priority", absl::StrCat(job.priority())},
                   {"slots", SlotsText(job)}};
  if (!job.labels().empty()) {
    std::vector<std::string> labels;
    for (const auto& [key, value] : job.labels()) labels.push_back(absl::StrCat(key, "=", value));
    std::sort(labels.begin(), labels.end());
    fields.emplace_back("labels", absl::StrJoin(labels, ", "));
  }
  if (const std::string ranks = RanksText(SpecOfNow(job)); !ranks.empty()) {
    fields.emplace_back("ranks", ranks);
  }
  if (job.max_slots() > 1 && job.shard() != v1::Parallel::SHARD_UNSPECIFIED) {
    fields.emplace_back("shard", v1::Parallel::Shard_Name(job.shard()));
  }
  if (job.has_plan()) {
    fields.emplace_back("parameters", FormatCount(job.plan().parameters()));
    // A server of before does not say what it needs in the layout of now.
    const int64_t bytes =
        job.bytes_per_slot() > 0 ? job.bytes_per_slot() : job.plan().bytes_per_slot();
    fields.emplace_back("memory", absl::StrCat(FormatBytes(bytes), " per slot"));
    if (!job.plan().chosen().empty()) fields.emplace_back("chosen", job.plan().chosen());
  }
  if (!job.checkpoint().empty()) fields.emplace_back("checkpoint", job.checkpoint());
  if (job.has_failure()) {
    fields.emplace_back(
        "failure", absl::StrCat(v1::Failure::Category_Name(job.failure().category()), ": ",
                                job.failure().message(), " (rank ", job.failed_rank(),
                                job.failed_node().empty() ? "" : " on ", job.failed_node(), ", ",
                                job.failure().retryable() ? "retryable" : "not retryable", ")"));
  }
  AddTime("created", job.has_create_time(), job.create_time(), fields);
  AddTime("started", job.has_start_time(), job.start_time(), fields);
  AddTime("ended", job.has_end_time(), job.end_time(), fields);
  if (!job.creator().empty()) fields.emplace_back("creator", job.creator());
  return RenderFields(terminal, fields);
}

namespace {

// "412.0 MiB less, 1.2 TFLOP more per step in 60 more kernels per micro-batch", "0 B less, 24
// kernels less per micro-batch"
std::string WhatItSaved(const v1::PassSummary& pass) {
  std::string text = absl::StrCat(FormatBytes(pass.bytes_before() - pass.bytes_after()), " less");
  const int more = pass.ops_after() - pass.ops_before();
  if (more > 0) {
    absl::StrAppend(&text, ", ", FormatScaled(pass.added_flops()), "FLOP more per step in ", more,
                    " more kernels per micro-batch");
  }
  if (more < 0) absl::StrAppend(&text, ", ", -more, " kernels less per micro-batch");
  return text;
}

}  // namespace

std::string RenderPlan(const Terminal& terminal, const v1::Job& job) {
  const v1::PlanSummary plan = Shown(job.plan());
  const double total = plan.flops_per_step() * static_cast<double>(plan.total_steps());
  Fields fields = {{"parameters", FormatCount(plan.parameters())},
                   {"  frozen", FormatCount(plan.frozen_parameters())},
                   {"steps", FormatCount(plan.total_steps())},
                   {"work per step", FormatScaled(plan.flops_per_step()) + "FLOP"},
                   {"work in all", FormatScaled(total) + "FLOP"},
                   {"memory per slot", FormatBytes(plan.bytes_per_slot())}};
  if (const std::string ranks = RanksText(job.spec()); !ranks.empty()) {
    fields.insert(fields.begin() + 2, {"ranks", ranks});
  }
  const bool gpu = plan.device() == v1::Resources::CUDA;
  const std::pair<const char*, int64_t> kinds[] = {
      {"  parameters", plan.parameter_bytes()},
      {"  gradients", plan.gradient_bytes()},
      {"  optimizer", plan.optimizer_bytes()},
      {"  ema", plan.ema_bytes()},
      {"  buffers", plan.buffer_bytes()},
      {"  activations", plan.activation_bytes()},
      {"  workspace", plan.workspace_bytes()},
      {gpu ? "  inbox" : "  staging", gpu ? plan.inbox_bytes() : plan.staging_bytes()},
      {gpu ? "  context" : "  process", plan.process_bytes()}};
  for (const auto& [name, bytes] : kinds) fields.emplace_back(name, FormatBytes(bytes));
  fields.emplace_back("  shared", absl::StrCat("-", FormatBytes(plan.shared_bytes())));
  if (gpu) fields.emplace_back("host staging", FormatBytes(plan.staging_bytes()));
  if (plan.sent_bytes_per_step() > 0) {
    fields.emplace_back("sent per step", FormatBytes(plan.sent_bytes_per_step()) + " by a rank");
  }
  if (plan.bubble_share() > 0) {
    fields.emplace_back("pipeline", absl::StrFormat("ranks wait %.0f%% of a step for other stages",
                                                    100 * plan.bubble_share()));
  }
  if (!plan.chosen().empty()) fields.emplace_back("chosen", plan.chosen());
  for (const v1::PassSummary& pass : plan.passes()) {
    fields.emplace_back(absl::StrCat("pass ", pass.name()), WhatItSaved(pass));
  }
  return RenderFields(terminal, fields);
}

std::string RenderLayouts(const Terminal& terminal, const v1::PlanLayoutsResponse& plan) {
  bool timed = false, shared = false, staged = false, chunked = false, sequence = false;
  for (const v1::LayoutPlan& layout : plan.layouts()) {
    timed = timed || layout.step_seconds() > 0;
    shared = shared || layout.layout().has_tensor();
    staged = staged || layout.layout().has_pipeline();
    chunked = chunked || layout.layout().has_chunks();
    sequence = sequence || layout.layout().sequence();
  }
  std::vector<std::string> header = {"SLOTS"};
  if (shared) header.push_back("LAYOUT.TENSOR");
  if (staged) header.push_back("LAYOUT.PIPELINE");
  if (chunked) header.push_back("LAYOUT.CHUNKS");
  if (sequence) header.push_back("LAYOUT.SEQUENCE");
  header.insert(header.end(), {"LOGICAL RANKS EACH", "BUSY", "MEMORY PER SLOT", "SENT PER STEP"});
  if (timed) header.push_back("STEP, ESTIMATED");
  Table table(header);
  for (size_t column = 0; column < header.size(); ++column) {
    table.AlignRight(static_cast<int>(column));
  }
  std::string refused;
  for (const v1::LayoutPlan& layout : plan.layouts()) {
    if (!layout.refused().empty()) {
      absl::StrAppend(&refused, layout.slots(), layout.slots() == 1 ? " slot" : " slots",
                      layout.layout().tensor() > 1
                          ? absl::StrCat(", parallel.layout.tensor ", layout.layout().tensor())
                          : "",
                      layout.layout().pipeline() > 1
                          ? absl::StrCat(", parallel.layout.pipeline ", layout.layout().pipeline())
                          : "",
                      layout.layout().chunks() > 1
                          ? absl::StrCat(", parallel.layout.chunks ", layout.layout().chunks())
                          : "",
                      layout.layout().sequence() ? ", parallel.layout.sequence" : "", ": ",
                      Shown(layout).refused(), "\n");
      continue;
    }
    std::vector<std::string> row = {FormatCount(layout.slots())};
    if (shared) row.push_back(FormatCount(std::max(1, layout.layout().tensor())));
    if (staged) row.push_back(FormatCount(std::max(1, layout.layout().pipeline())));
    if (chunked) row.push_back(FormatCount(std::max(1, layout.layout().chunks())));
    if (sequence) row.push_back(layout.layout().sequence() ? "true" : "");
    row.insert(row.end(),
               {FormatCount(layout.logical_ranks_per_slot()),
                absl::StrFormat("%.0f%%", 100 * layout.busy_share()),
                FormatBytes(layout.bytes_per_slot()), FormatBytes(layout.sent_bytes_per_step())});
    if (timed) {
      row.push_back(
          layout.step_seconds() > 0 ? absl::StrFormat("%.4g ms", 1e3 * layout.step_seconds()) : "");
    }
    table.Add(std::move(row));
  }
  std::string text = absl::StrCat(table.empty() ? "" : table.Render(terminal), refused);
  if (!plan.advice().empty()) absl::StrAppend(&text, Shown(plan).advice(), "\n");
  return text;
}

}  // namespace trainyard::cli
