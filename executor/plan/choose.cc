#include "executor/plan/choose.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/plan/layouts.h"
#include "executor/plan/sizing.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Which of two meshes is faster hardly depends on how fast slots and links are, only on how fast
// beside each other.
constexpr Rates kCpuRates = {.flops_per_second = 1e11, .bytes_per_second = 1e9};
constexpr Rates kGpuRates = {.flops_per_second = 2e14, .bytes_per_second = 5e10};

constexpr size_t kMostTold = 3;  // meshes that were too large; reasons why others were refused

// "shard GRADIENTS", "tensor 2, pipeline 4 in 2 chunks, sequence".
std::string NameOf(const v1::Parallel& parallel) {
  std::vector<std::string> parts;
  const v1::Parallel::Shard shard = parallel.shard();
  if (shard != v1::Parallel::SHARD_UNSPECIFIED && shard != v1::Parallel::NONE) {
    parts.push_back(absl::StrCat("shard ", v1::Parallel::Shard_Name(shard)));
  }
  const int32_t tensor = parallel.layout().tensor(), stages = parallel.layout().pipeline();
  if (tensor > 1) parts.push_back(absl::StrCat("tensor ", tensor));
  const int32_t chunks = parallel.layout().chunks();
  if (stages > 1) {
    parts.push_back(absl::StrCat("pipeline ", stages,
                                 chunks > 1 ? absl::StrCat(" in ", chunks, " chunks") : ""));
  }
  if (parallel.layout().sequence()) parts.push_back("sequence");
  return parts.empty() ? "the job as it is" : absl::StrJoin(parts, ", ");
}

// `parallel` on groups of `tensor` times `stages` ranks; none if it says that there are fewer
// shards or stages.
std::optional<v1::Parallel> InGroups(v1::Parallel parallel, int32_t tensor, int32_t stages) {
  if (parallel.tensor() <= 1) parallel.set_tensor(tensor);
  if (parallel.pipeline() <= 1) parallel.set_pipeline(stages);
  if (tensor > parallel.tensor() || stages > parallel.pipeline()) return std::nullopt;
  parallel.mutable_layout()->set_tensor(tensor);
  parallel.mutable_layout()->set_pipeline(stages);
  return parallel;
}

// Meshes of which the fastest that fits is chosen, before any of the next are looked at.
using Alternatives = std::vector<v1::Parallel>;

constexpr int32_t kMostChunks = 4;
// How much more a mesh of one chunk may need than one of several, as a rule.
constexpr int64_t kMostSavedByChunks = 2;

// `mesh`, then with tokens that are shared out, then each with stages of several chunks, where that
// can be. `layers`: of the model.
Alternatives LayoutsOf(const v1::Parallel& mesh, int64_t layers) {
  const v1::Layout& own = mesh.layout();
  Alternatives layouts = {mesh};
  if (own.tensor() > 1 && own.tensor() == mesh.tensor() && !own.sequence()) {
    layouts.emplace_back(mesh).mutable_layout()->set_sequence(true);
  }
  if (own.pipeline() <= 1 || own.chunks() > 1) return layouts;
  const Alternatives of_one_chunk = layouts;
  for (const v1::Parallel& one : of_one_chunk) {
    for (int32_t chunks = 2; chunks <= kMostChunks; chunks *= 2) {
      if (chunks * own.pipeline() > layers) break;
      layouts.emplace_back(one).mutable_layout()->set_chunks(chunks);
    }
  }
  return layouts;
}

Alternatives WithShardedOptimizer(Alternatives meshes) {
  for (v1::Parallel& mesh : meshes) mesh.set_shard(v1::Parallel::OPTIMIZER);
  return meshes;
}

std::vector<Alternatives> MeshesToTry(const v1::JobSpec& spec) {
  v1::Parallel own = spec.parallel();
  own.clear_auto_();
  std::vector<Alternatives> meshes = {{own}};
  const int32_t slots = spec.resources().max_slots();
  const v1::Parallel::Shard shard = own.shard();
  const bool open = shard == v1::Parallel::SHARD_UNSPECIFIED;
  const bool keeps_all_state = open && HasNormOfShards(own);  // by default
  if (keeps_all_state && slots > RanksInGroup(own)) meshes.push_back(WithShardedOptimizer({own}));
  if (RanksInGroup(own) > 1) return meshes;
  if (open && !keeps_all_state) {
    if (own.second_owner()) meshes.push_back(WithShardedOptimizer({own}));  // which keeps all, too
    for (const v1::Parallel::Shard more : {v1::Parallel::GRADIENTS, v1::Parallel::PARAMETERS}) {
      own.set_shard(more);
      meshes.push_back({own});
    }
    own.clear_shard();
  }
  if (shard == v1::Parallel::GRADIENTS || shard == v1::Parallel::PARAMETERS) return meshes;
  for (int32_t in_group = 2; in_group <= slots; ++in_group) {
    if (slots % in_group != 0) continue;
    Alternatives alike;
    for (int32_t tensor = 1; tensor <= in_group; ++tensor) {
      if (in_group % tensor != 0) continue;
      auto mesh = InGroups(own, tensor, in_group / tensor);
      if (!mesh.has_value()) continue;
      absl::c_move(LayoutsOf(*mesh, LayersOf(spec.model())), std::back_inserter(alike));
    }
    meshes.push_back(alike);
    if (open && in_group < slots) meshes.push_back(WithShardedOptimizer(std::move(alike)));
  }
  return meshes;
}

bool IsRefused(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
}

// Looks at one mesh after the other.
class Choice {
 public:
  Choice(const v1::JobSpec& spec, const DataFacts& facts, int64_t slot_bytes)
      : spec_(spec), facts_(facts), slot_bytes_(slot_bytes) {}

  absl::Status LookAt(const v1::Parallel& parallel) {
    if (parallel.shard() == v1::Parallel::OPTIMIZER) {
      v1::Parallel kept = parallel;
      kept.clear_shard();
      const auto least = without_state_.find(NameOf(kept));
      if (least != without_state_.end() && least->second > slot_bytes_) return absl::OkStatus();
    }
    if (parallel.layout().chunks() > 1) {
      // Of stages of one chunk, which were looked at before unless the job names chunks. Several
      // keep more activations, but may share out large tables more evenly.
      v1::Parallel whole = parallel;
      whole.mutable_layout()->clear_chunks();
      const auto of_one = bytes_.find(NameOf(whole));
      if (of_one != bytes_.end() && of_one->second / kMostSavedByChunks > slot_bytes_) {
        return absl::OkStatus();
      }
    }
    v1::JobSpec asked = spec_;
    *asked.mutable_parallel() = parallel;
    absl::StatusOr<v1::JobSpec> spec = ResolveSpec(asked);
    if (!spec.ok()) return Refuse(parallel, spec.status());
    const absl::StatusOr<Plan> plan = PlanForAnyRanks(*spec, facts_);
    if (!plan.ok()) return Refuse(parallel, plan.status());
    const int64_t bytes = plan->summary.bytes_per_slot();
    bytes_[NameOf(parallel)] = bytes;
    const std::string needs =
        absl::StrCat(NameOf(parallel), " needs ", DescribeBytes(bytes), " a slot");
    if (bytes > slot_bytes_) {
      without_state_[NameOf(parallel)] = bytes - plan->summary.optimizer_bytes();
      too_large_.push_back(needs);
      if (too_large_.size() == 1 || bytes < least_) {
        least_ = bytes;
        needs_least_ = absl::StrCat(NameOf(parallel), ", with ", DescribeBytes(bytes), " a slot");
      }
      return absl::OkStatus();
    }
    const bool on_gpus = spec->resources().device() == v1::Resources::CUDA;
    const double seconds = EstimateStepSeconds(
        *plan, {.slots = spec->resources().max_slots(), .group = GroupOf(*spec)},
        on_gpus ? kGpuRates : kCpuRates);
    if (found_.fits && seconds >= seconds_) return absl::OkStatus();
    seconds_ = seconds;
    found_ = {.fits = true, .spec = *std::move(spec), .summary = plan->summary, .why = needs};
    return absl::OkStatus();
  }

  bool found() const { return found_.fits; }

  ChosenMesh End(bool early) && {
    found_.ended_early = early;
    if (!found_.fits) {
      found_.why = absl::StrCat(
          needs_least_.empty() ? "" : absl::StrCat("what needs least is ", needs_least_),
          refused_.empty() ? "" : "; refused: ", absl::StrJoin(refused_, "; "));
      return std::move(found_);
    }
    const size_t told = std::min(too_large_.size(), kMostTold);
    absl::StrAppend(&found_.why, ", of ", DescribeBytes(slot_bytes_));
    for (size_t i = too_large_.size() - told; i < too_large_.size(); ++i) {
      absl::StrAppend(&found_.why, "; ", too_large_[i]);
    }
    return std::move(found_);
  }

 private:
  absl::Status Refuse(const v1::Parallel& parallel, const absl::Status& status) {
    if (!IsRefused(status)) return status;
    const std::string message(status.message());
    const std::string field = message.substr(0, message.find(':'));
    if (refused_.size() < kMostTold && !absl::c_linear_search(fields_, field)) {
      fields_.push_back(field);
      refused_.push_back(absl::StrCat(NameOf(parallel), " (", message, ")"));
    }
    return absl::OkStatus();
  }

  const v1::JobSpec& spec_;
  const DataFacts& facts_;
  const int64_t slot_bytes_;
  ChosenMesh found_;
  double seconds_ = 0;  // of what was found
  // What those that were too large need but for the optimizer's state: less is not to be had by
  // sharing that out.
  std::map<std::string, int64_t> without_state_;
  std::map<std::string, int64_t> bytes_;  // a slot, of meshes that were looked at
  std::vector<std::string> too_large_, refused_;
  std::vector<std::string> fields_;  // that were told to be the reason, once each
  int64_t least_ = 0;
  std::string needs_least_;
};

}  // namespace

absl::StatusOr<ChosenMesh> ChooseMesh(const v1::JobSpec& spec, const DataFacts& facts,
                                      int64_t slot_bytes, const std::function<bool()>& stop) {
  Choice choice(spec, facts, slot_bytes);
  for (const Alternatives& alike : MeshesToTry(spec)) {
    for (const v1::Parallel& parallel : alike) {
      if (stop()) return std::move(choice).End(/*early=*/true);
      TY_RETURN_IF_ERROR(choice.LookAt(parallel));
    }
    if (choice.found()) break;
  }
  return std::move(choice).End(/*early=*/false);
}

}  // namespace trainyard::plan
