#include "executor/engine/sharded_state.h"

#include <algorithm>
#include <string>

#include "executor/engine/fault.h"
#include "executor/engine/read_tensor.h"
#include "executor/plan/graph/stored_shards.h"
#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// All that this rank has a share of.
std::vector<plan::OwnedRun> AllOwned(const plan::Plan& plan) {
  std::vector<plan::OwnedRun> owned = plan.owned;
  owned.insert(owned.end(), plan.owned_rows.begin(), plan.owned_rows.end());
  return owned;
}

// The slices of these ranks, or of all, those of tables behind the others.
std::vector<plan::RankSlice> AllSlices(const plan::Plan& plan, const std::vector<int64_t>& ranks) {
  const auto of_ranks = [&](const std::vector<plan::Bucket>& buckets) {
    return plan::SlicesInOrder(ranks.empty() ? buckets : plan::BucketsOf(buckets, ranks));
  };
  std::vector<plan::RankSlice> slices = of_ranks(plan.buckets);
  const std::vector<plan::RankSlice> of_tables = of_ranks(plan.tables);
  slices.insert(slices.end(), of_tables.begin(), of_tables.end());
  return slices;
}

// Where `run` has what a snapshot calls `what`; kNone: nowhere.
plan::TensorId Of(const plan::OwnedRun& run, int64_t what) {
  if (what == Snapshot::kWeights) return run.weights;
  const bool known = what >= 0 && what < static_cast<int64_t>(run.state.size());
  return known ? run.state[what] : plan::kNone;
}

}  // namespace

ShardedState::ShardedState(Session& session, const Gang& gang, const std::vector<int64_t>& ranks)
    : session_(session),
      owned_(AllOwned(session.plan())),
      slices_(AllSlices(session.plan(), ranks)),
      exchange_(gang, [this](const StateRequest& request, absl::Span<float> to) {
        return ReadOwn(request, to);
      }) {}

absl::Status ShardedState::ReadOwn(const StateRequest& request, absl::Span<float> to) {
  // What comes from another rank may be any number.
  const int64_t first = std::clamp<int64_t>(request.first, 0, int64_t{1} << 60);
  const plan::ElementRange wanted = {first, first + request.n};
  for (const plan::OwnedRun& run : owned_) {
    if (plan::Common(run.elements, wanted) != wanted) continue;
    const plan::TensorId state = Of(run, request.kind);
    if (state == plan::kNone) break;
    return session_.ReadNow(state, to.data(), to.size() * sizeof(float),
                            (first - run.elements.first) * sizeof(float));
  }
  return WithFault(
      Fault::kInternal,
      absl::InternalError(absl::StrCat(
          "rank ", session_.plan().rank, " of those that host the same has no ",
          request.kind == Snapshot::kWeights ? "weights" : absl::StrCat("state ", request.kind),
          " of elements ", wanted.first, " to ", wanted.end)));
}

absl::Status ShardedState::Read(int64_t what, int64_t first, absl::Span<float> to) {
  const int64_t end = first + static_cast<int64_t>(to.size());
  auto slice =
      std::upper_bound(slices_.begin(), slices_.end(), first,
                       [](int64_t at, const plan::RankSlice& s) { return at < s.elements.end; });
  for (int64_t at = first; at < end; ++slice) {
    TY_CHECK(slice != slices_.end(), "element ", at, " is in no slice");
    const int64_t n = std::min(slice->elements.end, end) - at;
    TY_RETURN_IF_ERROR(exchange_.Read(static_cast<int>(slice->rank), {.kind = what, .first = at},
                                      to.subspan(at - first, n)));
    at += n;
  }
  return absl::OkStatus();
}

namespace {

// The part of `elements` that is of `placed`, as bytes from the start of what a checkpoint stores.
struct StoredBytes {
  int64_t offset = 0, bytes = 0;
};

StoredBytes PartOf(const plan::PlacedTensor& placed, const plan::ElementRange& elements) {
  const plan::ElementRange stored = {placed.elements.first,
                                     placed.elements.first + placed.stored.elements()};
  const plan::ElementRange common = plan::Common(stored, elements);
  constexpr int64_t kSize = sizeof(float);
  return {.offset = (common.first - stored.first) * kSize, .bytes = common.size() * kSize};
}

}  // namespace

namespace {

// Reads what `checkpoint` has of `placed`, from element `first` of the dense gradients on.
absl::Status ReadPlaced(const Checkpoint& checkpoint, const plan::Plan& plan,
                        const std::vector<plan::PlacedTensor>& placed, int64_t what, int64_t first,
                        absl::Span<float> to) {
  const bool of_weights = what == Snapshot::kWeights;
  const weights::SafetensorsFile& file = of_weights ? checkpoint.model : checkpoint.optimizer;
  const std::string prefix = of_weights ? "" : OptimizerPrefix(plan, what);
  const plan::ElementRange wanted = {first, first + static_cast<int64_t>(to.size())};
  for (const plan::PlacedTensor& p : placed) {
    const StoredBytes part = PartOf(p, wanted);
    if (part.bytes == 0) continue;
    TY_ASSIGN_OR_RETURN(const weights::TensorEntry entry,
                        file.Find(prefix + p.stored.name, p.stored.dims));
    const int64_t at = std::max<int64_t>(0, p.elements.first - first);
    TY_RETURN_IF_ERROR(file.Read(entry, part.offset, part.bytes, to.data() + at));
  }
  return absl::OkStatus();
}

// Writes to this rank's share of state `kind` what it has of elements from `first` on.
void WriteShare(size_t kind, int64_t first, absl::Span<const float> values, Session& session) {
  const plan::ElementRange written = {first, first + static_cast<int64_t>(values.size())};
  for (const plan::OwnedRun& run : session.plan().owned) {
    const plan::ElementRange common = plan::Common(run.elements, written);
    if (common.size() == 0 || run.state[kind] == plan::kNone) continue;
    session.Write(run.state[kind], values.data() + (common.first - first),
                  common.size() * sizeof(float),
                  (common.first - run.elements.first) * sizeof(float));
  }
}

// The state of shards of parameters: a checkpoint has that of the whole.
absl::Status RestoreShards(const Checkpoint& checkpoint, Session& session) {
  const plan::Plan& plan = session.plan();
  std::vector<int64_t> begins;  // of parameters that are shards, among the dense gradients
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    const bool shard = plan.tensors[plan.parameters[i]].shard != nullptr;
    begins.push_back(shard ? plan::RunLength(plan, 0, i) : -1);
  }
  const std::vector<int64_t> of_group = plan::ByGroup(plan, begins, int64_t{-1});
  for (const plan::StoredInShards& tensor : plan::StoredShards(plan)) {
    const auto here = [&](const plan::ShardPiece& piece) { return of_group[piece.position] >= 0; };
    if (std::none_of(tensor.pieces.begin(), tensor.pieces.end(), here)) continue;
    for (size_t kind = 0; kind < plan.optimizer_state_names.size(); ++kind) {
      const auto write = [&](size_t position, int64_t offset, absl::Span<const float> run) {
        if (of_group[position] >= 0) WriteShare(kind, of_group[position] + offset, run, session);
      };
      TY_RETURN_IF_ERROR(ReadStoredShards(checkpoint.optimizer,
                                          OptimizerPrefix(plan, kind) + tensor.stored.name, tensor,
                                          session, write));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RestoreShare(const Checkpoint& checkpoint, Session& session) {
  const plan::Plan& plan = session.plan();
  std::vector<plan::PlacedTensor> placed = plan::PlacedTensors(plan, plan.shared_out());
  std::erase_if(placed, [&](const plan::PlacedTensor& p) {  // RestoreShards
    return plan.tensors[plan.parameters[p.position]].shard != nullptr;
  });
  const auto kinds = static_cast<int64_t>(plan.optimizer_state_names.size());
  std::vector<float> values;
  for (const plan::OwnedRun& run : AllOwned(plan)) {
    for (int64_t what = Snapshot::kWeights; what < kinds; ++what) {
      const plan::TensorId share = Of(run, what);
      if (share == plan::kNone) continue;
      for (int64_t at = run.elements.first; at < run.elements.end;
           at += StateExchange::kMostInAnswer) {
        // What pads a tensor is no part of a checkpoint, and zero.
        values.assign(std::min(StateExchange::kMostInAnswer, run.elements.end - at), 0);
        TY_RETURN_IF_ERROR(ReadPlaced(checkpoint, plan, placed, what, at, absl::MakeSpan(values)));
        session.Write(share, values.data(), values.size() * sizeof(float),
                      (at - run.elements.first) * sizeof(float));
        TY_RETURN_IF_ERROR(session.Synchronize());
      }
    }
  }
  return RestoreShards(checkpoint, session);
}

}  // namespace trainyard::engine
