#include "server/sizing/size_job.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/data/read_facts.h"
#include "executor/plan/build.h"
#include "executor/plan/cost/gang_memory.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/mesh.h"
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

absl::StatusOr<plan::DataFacts> FindFacts(const v1::JobSpec& spec) {
  const plan::Windowing windowing = plan::WindowingOf(spec.model());
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

// How many looks are spent on finding out with how many ranks one holds most.
constexpr int kMostLooks = 64;

// Numbers of ranks of which one needs most memory, but for links: the fewest, since each then owns
// the most state, and the fewest of each depth to which partial sums pile up. (Where several share
// a logical rank there is one: spec/parallel.cc.)
std::vector<int> RanksToSize(const v1::JobSpec& spec) {
  if (plan::RanksInGroup(spec.parallel()) > 1) return {spec.resources().max_slots()};
  const int least = std::max(1, spec.resources().min_slots());
  const int most = std::max(least, spec.resources().max_slots());
  const int logical = std::max(most, spec.parallel().logical_ranks());
  std::vector<int> ranks;
  std::set<int64_t> depths;
  int64_t places = 0;  // of sums that a rank keeps where gradients are sharded, at most so far
  for (int n = least; n <= std::min(most, least + kMostLooks - 1); ++n) {
    if (plan::ShardsGradients(spec, n)) {
      const int64_t needed = plan::PlacesBetweenRounds(plan::RoundsInTurn(logical, n));
      if (needed > places) ranks.push_back(n);
      places = std::max(places, needed);
      continue;
    }
    if (depths.insert(plan::MostSums(logical, n)).second) ranks.push_back(n);
  }
  return ranks;
}

// The plan of the number of ranks with which one needs most, with the links of the most ranks.
absl::StatusOr<plan::Plan> LargestPlan(const v1::JobSpec& spec, const plan::DataFacts& facts) {
  const auto links = [&spec](int ranks) {
    v1::JobSpec on = spec;
    on.mutable_resources()->set_max_slots(ranks);
    return plan::GangBytes(on, std::max(ranks, spec.parallel().logical_ranks()));
  };
  std::optional<plan::Plan> largest;
  for (const int ranks : RanksToSize(spec)) {
    v1::JobSpec one = spec;
    one.mutable_resources()->set_min_slots(ranks);
    one.mutable_resources()->set_max_slots(ranks);
    TY_ASSIGN_OR_RETURN(plan::Plan plan, plan::BuildLargestPlan(one, facts));
    const int64_t more = links(std::max(ranks, spec.resources().max_slots())) - links(ranks);
    plan.summary.set_staging_bytes(plan.summary.staging_bytes() + more);
    if (plan.summary.device() != v1::Resources::CUDA) {
      plan.summary.set_bytes_per_slot(plan.summary.bytes_per_slot() + more);
    }
    if (!largest.has_value() || plan.summary.bytes_per_slot() > largest->summary.bytes_per_slot()) {
      largest = std::move(plan);
    }
  }
  return *std::move(largest);
}

}  // namespace

absl::StatusOr<Sizing> SizeJob(const v1::JobSpec& spec) {
  Sizing sizing;
  TY_ASSIGN_OR_RETURN(sizing.facts, FindFacts(spec));
  TY_ASSIGN_OR_RETURN(plan::Plan plan, LargestPlan(spec, sizing.facts));
  TY_RETURN_IF_ERROR(CheckStart(spec, plan));
  sizing.summary = std::move(plan.summary);
  return sizing;
}

}  // namespace trainyard
