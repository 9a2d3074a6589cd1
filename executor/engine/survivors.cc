#include "executor/engine/survivors.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/engine/fault.h"
#include "executor/engine/trainer.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

template <typename T>
absl::Span<T> ValuesIn(const Session& session, const plan::Region& region) {
  const absl::Span<char> memory = session.InMemory(region);
  return {reinterpret_cast<T*>(memory.data()), memory.size() / sizeof(T)};
}

}  // namespace

absl::StatusOr<Salvage> ChooseSalvage(const std::vector<Remains>& of_ranks) {
  const auto reach = [](const Remains& one) { return one.steps + one.can_finish; };
  const auto less = [&](const auto& key) {
    return [&key](const Remains& a, const Remains& b) { return key(a) < key(b); };
  };
  const auto steps = [](const Remains& one) { return one.steps; };
  const auto room = [](const Remains& one) { return std::make_pair(one.room, one.steps); };
  const int64_t newest = std::max_element(of_ranks.begin(), of_ranks.end(), less(steps))->steps;
  const int64_t all_reach = reach(*std::min_element(of_ranks.begin(), of_ranks.end(), less(reach)));
  if (all_reach < newest) {
    return absl::FailedPreconditionError(
        absl::StrCat("one of the ranks that are left can make no more than ", all_reach,
                     " steps, another one has made ", newest));
  }
  const auto keeper = std::max_element(of_ranks.begin(), of_ranks.end(), less(room));
  if (keeper->room <= 0) {
    return absl::ResourceExhaustedError("no node that is left has memory for it");
  }
  return Salvage{.step = all_reach, .rank = static_cast<int>(keeper - of_ranks.begin())};
}

absl::Status CheckSurvivors(const std::vector<int>& ranks, int rank, int size) {
  const bool ordered =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  const bool among = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  if (ordered && among && ranks.front() >= 0 && ranks.back() < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", rank, " of ", size, " was told that these ranks are left: ",
                   absl::StrJoin(ranks, ","), "; expected some of them in order, and itself"));
}

absl::StatusOr<std::vector<Remains>> GatherRemains(const Gang& left, const Remains& mine) {
  std::vector<Remains> all(left.size());
  all[left.rank()] = mine;
  std::vector<absl::Span<char>> parts;
  for (Remains& one : all) parts.push_back(Received(absl::MakeSpan(&one, 1)));
  TY_RETURN_IF_ERROR(left.AllGather(parts));
  return all;
}

Survivors::Survivors(Session& session, const Gang& left, const std::vector<int64_t>& ranks)
    : session_(session),
      left_(left),
      buckets_(plan::BucketsOf(session.plan().buckets, ranks)),
      tables_(plan::BucketsOf(session.plan().tables, ranks)) {}

absl::Status Survivors::CheckComplete() const {
  if (plan::CoverAll(buckets_) && plan::CoverAll(tables_)) return absl::OkStatus();
  return absl::FailedPreconditionError("both owners of a part of it were lost");
}

absl::Status Survivors::ShareLeaves() {
  if (left_.alone()) return absl::OkStatus();
  NormAcrossRanks norm(left_.communicator(), buckets_, /*meets=*/true);
  return WithFault(Fault::kGang,
                   norm.ShareLeaves(ValuesIn<double>(session_, session_.plan().leaves_region)));
}

absl::Status Survivors::GatherParameters() {
  const plan::Plan& plan = session_.plan();
  if (left_.alone() || plan.parameters_sharded) return absl::OkStatus();
  SumAcrossRanks slices(left_.communicator(), plan.logical_ranks);
  const absl::Span<float> parameters = ValuesIn<float>(session_, plan.parameter_region);
  for (const plan::Bucket& bucket : buckets_) {
    const plan::Handing handing = plan::HandingOf(bucket, left_.rank());
    TY_RETURN_IF_ERROR(WithFault(Fault::kGang, slices.Gather(bucket, handing, parameters)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StepResult>> Trainer::GoOnAmong(const Gang& left,
                                                             const std::vector<int64_t>& ranks,
                                                             int64_t step) {
  TY_CHECK(session_.plan().sharded && HasItsState(), "this rank's share of the state is not known");
  across_->Quiesce();
  Survivors survivors(session_, left, ranks);
  TY_RETURN_IF_ERROR(survivors.CheckComplete());
  TY_RETURN_IF_ERROR(survivors.ShareLeaves());
  std::optional<StepResult> result;
  if (steps_done_ < step) {
    TY_CHECK(can_finish_ && steps_done_ + 1 == step, "step ", step, " after ", steps_done_);
    TY_RETURN_IF_ERROR(RunEnd());
    ungathered_ = true;
    TY_RETURN_IF_ERROR(EndStep());
    TY_ASSIGN_OR_RETURN(result, Finish());
    can_finish_ = false;
  }
  // It may have begun to gather them: this rank's own slices are those of the step in any case.
  TY_RETURN_IF_ERROR(survivors.GatherParameters());
  if (std::exchange(ungathered_, false)) session_.Launch(gathered_);
  groups_ = Groups(left);
  shares_.emplace(session_, groups_.data(), ranks);
  return result;
}

}  // namespace trainyard::engine
