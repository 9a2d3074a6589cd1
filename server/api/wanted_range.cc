#include "server/api/wanted_range.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "executor/plan/spec/layout_change.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

bool AsksForLayout(const v1::ResizeJobRequest& request) {
  return request.has_layout() || request.shard() != v1::Parallel::SHARD_UNSPECIFIED;
}

// What is stored of the layout of `spec` beside the spec that was submitted.
absl::StatusOr<std::string> LayoutBeside(const JobRecord& job, const v1::JobSpec& spec) {
  TY_ASSIGN_OR_RETURN(const v1::JobSpec submitted, plan::SpecInLayout(job.spec, ""));
  std::string text = plan::LayoutText(spec);
  return text == plan::LayoutText(submitted) ? "" : text;
}

absl::Status CheckSlots(const v1::ResizeJobRequest& request, const SlotRange& range,
                        const v1::Parallel& parallel) {
  const int64_t sharing = plan::RanksInGroup(parallel);
  const int64_t most = std::max(1, parallel.logical_ranks()) * sharing;
  const std::string expected =
      sharing == 1 ? absl::StrCat("1 to ", most,
                                  ", the logical ranks of the job (spec.parallel.logical_ranks)")
                   : absl::StrCat("a multiple of ", sharing, " (parallel.layout) up to ", most);
  const auto check = [&](const char* field, int slots, bool given) -> absl::Status {
    if (slots >= 1 && slots <= most && slots % sharing == 0) return absl::OkStatus();
    if (given) return FieldError(field, slots, expected);
    return absl::InvalidArgumentError(absl::StrCat("layout: does not go with ", field,
                                                   ", which is ", slots, "; set it as well, to ",
                                                   expected));
  };
  TY_RETURN_IF_ERROR(check("min_slots", range.min_slots, request.has_min_slots()));
  TY_RETURN_IF_ERROR(check("max_slots", range.max_slots, request.has_max_slots()));
  if (range.max_slots >= range.min_slots) return absl::OkStatus();
  return request.has_max_slots()
             ? FieldError("max_slots", range.max_slots,
                          absl::StrCat("at least min_slots, which is ", range.min_slots))
             : FieldError("min_slots", range.min_slots,
                          absl::StrCat("at most max_slots, which is ", range.max_slots));
}

}  // namespace

absl::Status OfResizeRequest(const absl::Status& status) {
  for (const auto& [before, field] :
       {std::pair("spec.parallel.", "layout"), std::pair("spec.parallel.", "shard"),
        std::pair("spec.resources.", "min_slots"), std::pair("spec.resources.", "max_slots")}) {
    if (!absl::StartsWith(status.message(), absl::StrCat(before, field))) continue;
    return absl::Status(status.code(), absl::StripPrefix(status.message(), before));
  }
  return status;
}

absl::StatusOr<WantedRange> WantedRangeOf(const v1::ResizeJobRequest& request,
                                          const JobRecord& job) {
  if (!request.has_min_slots() && !request.has_max_slots() && !AsksForLayout(request)) {
    return absl::InvalidArgumentError(
        "min_slots, max_slots, layout, shard: found none, expected one of them");
  }
  WantedRange wanted;
  TY_ASSIGN_OR_RETURN(wanted.spec, plan::SpecInLayout(job.spec, job.layout));
  v1::Parallel& parallel = *wanted.spec.mutable_parallel();
  if (request.has_layout()) *parallel.mutable_layout() = request.layout();
  if (request.shard() != v1::Parallel::SHARD_UNSPECIFIED) parallel.set_shard(request.shard());
  TY_RETURN_IF_ERROR(OfResizeRequest(plan::CheckLayout(parallel)));
  SlotRange& range = wanted.range;
  range = {.min_slots = request.has_min_slots() ? request.min_slots() : job.min_slots,
           .max_slots = request.has_max_slots() ? request.max_slots() : job.max_slots,
           .bytes_per_slot = job.bytes_per_slot,
           .slot_step = static_cast<int>(plan::RanksInGroup(parallel)),
           .group_ranks = std::max(1, parallel.layout().tensor()),
           .layout = job.layout};
  TY_RETURN_IF_ERROR(CheckSlots(request, range, parallel));
  if (AsksForLayout(request)) {
    TY_ASSIGN_OR_RETURN(range.layout, LayoutBeside(job, wanted.spec));
    range.layout_in_words = plan::DescribeLayout(wanted.spec);
  }
  wanted.changes = range.min_slots != job.min_slots || range.max_slots != job.max_slots ||
                   range.layout != job.layout;
  if (!wanted.changes) return wanted;
  wanted.spec.mutable_resources()->set_min_slots(range.min_slots);
  wanted.spec.mutable_resources()->set_max_slots(range.max_slots);
  absl::StatusOr<v1::JobSpec> resolved = plan::ResolveSpec(wanted.spec);
  TY_RETURN_IF_ERROR(OfResizeRequest(resolved.status()));
  wanted.spec = *std::move(resolved);
  return wanted;
}

}  // namespace trainyard
