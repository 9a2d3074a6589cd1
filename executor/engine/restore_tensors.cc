#include "executor/engine/restore_tensors.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "executor/engine/checkpoint/adapter.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/read_tensor.h"
#include "executor/engine/sharded_state.h"
#include "executor/plan/graph/stored_shards.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

absl::Status Missing(const Checkpoint& checkpoint, const char* file) {
  return absl::DataLossError(absl::StrCat(checkpoint.uri, ": ", file, " is missing"));
}

// Where a checkpoint holds the tensors of a plan.
class Source {
 public:
  Source(const Checkpoint& checkpoint, const plan::Plan& plan) : from_(checkpoint) {
    for (const plan::Adapter& adapter : plan.adapters) {
      adapted_.insert(adapter.stored.name);
      matrices_.insert({plan.tensors[adapter.a].name, plan.tensors[adapter.b].name});
    }
  }

  absl::Status CheckComplete(const plan::Plan& plan) const {
    if (!plan.averages.empty() && !from_.ema) return Missing(from_, kEmaFile);
    if (!plan.adapters.empty() && !from_.adapter) return Missing(from_, kAdapterFile);
    if (!plan.adapters.empty() && !from_.base) return Missing(from_, kBaseFile);
    return absl::OkStatus();
  }

  absl::Status ReadParameter(const plan::StoredTensor& stored, Session& session,
                             plan::TensorId id) const {
    if (matrices_.contains(stored.name)) {
      return ReadStored(*from_.adapter, kPeftPrefix + stored.name, stored, session, id);
    }
    const weights::SafetensorsFile& file =
        adapted_.contains(stored.name) ? *from_.base : from_.model;
    return ReadStored(file, stored.name, stored, session, id);
  }

  absl::Status ReadAverage(const plan::StoredTensor& stored, Session& session,
                           plan::TensorId id) const {
    if (matrices_.contains(stored.name)) {
      return ReadStored(*from_.base, AveragePrefix() + stored.name, stored, session, id);
    }
    return ReadStored(*from_.ema, stored.name, stored, session, id);
  }

 private:
  const Checkpoint& from_;
  absl::flat_hash_set<std::string> adapted_, matrices_;
};

// Reads the tensors of which the plan has shards; `places` says where what goes with each parameter
// goes, kNone: nowhere.
absl::Status ReadShards(const weights::SafetensorsFile& file, const std::string& prefix,
                        const std::vector<plan::TensorId>& places, Session& session) {
  const std::vector<plan::TensorId> of_group =
      plan::ByGroup(session.plan(), places, plan::TensorId(plan::kNone));
  for (const plan::StoredInShards& tensor : plan::StoredShards(session.plan())) {
    const bool any = std::any_of(
        tensor.pieces.begin(), tensor.pieces.end(),
        [&](const plan::ShardPiece& piece) { return of_group[piece.position] != plan::kNone; });
    if (!any) continue;
    const auto write = [&](size_t position, int64_t offset, absl::Span<const float> run) {
      if (of_group[position] == plan::kNone) return;
      session.Write(of_group[position], run.data(), run.size() * sizeof(float),
                    offset * sizeof(float));
    };
    TY_RETURN_IF_ERROR(ReadStoredShards(file, prefix + tensor.stored.name, tensor, session, write));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RestoreTensors(const Checkpoint& checkpoint, Session& session) {
  const plan::Plan& plan = session.plan();
  const Source source(checkpoint, plan);
  TY_RETURN_IF_ERROR(source.CheckComplete(plan));
  const size_t sharded = plan.parameters_sharded ? plan.shared_out() : 0;  // RestoreShare
  for (size_t i = sharded; i < plan.parameters.size(); ++i) {
    const plan::TensorId id = plan.parameters[i];
    if (plan.host.Divides(plan.tensors[id])) continue;
    for (const plan::StoredTensor& stored : plan::Stored(plan.tensors[id])) {
      TY_RETURN_IF_ERROR(source.ReadParameter(stored, session, id));
    }
  }
  TY_RETURN_IF_ERROR(ReadShards(checkpoint.model, "", plan.parameters, session));
  for (const plan::TensorId id : plan.buffers) {
    TY_RETURN_IF_ERROR(ReadTensor(checkpoint.model, "", plan.tensors[id], session, id));
  }
  for (size_t kind = 0; kind < plan.optimizer_state.size(); ++kind) {
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      const plan::TensorId state = plan.optimizer_state[kind][i];
      if (state == plan::kNone || plan.host.Divides(plan.tensors[plan.parameters[i]])) continue;
      TY_RETURN_IF_ERROR(ReadTensor(checkpoint.optimizer, OptimizerPrefix(plan, kind),
                                    plan.tensors[plan.parameters[i]], session, state));
    }
    TY_RETURN_IF_ERROR(ReadShards(checkpoint.optimizer, OptimizerPrefix(plan, kind),
                                  plan.optimizer_state[kind], session));
  }
  if (plan.sharded) TY_RETURN_IF_ERROR(RestoreShare(checkpoint, session));
  for (size_t i = 0; i < plan.averages.size(); ++i) {
    if (plan.host.Divides(plan.tensors[plan.parameters[i]])) continue;
    for (const plan::StoredTensor& stored : plan::Stored(plan.tensors[plan.parameters[i]])) {
      TY_RETURN_IF_ERROR(source.ReadAverage(stored, session, plan.averages[i]));
    }
  }
  if (plan.averages.empty()) return absl::OkStatus();
  return ReadShards(*checkpoint.ema, "", plan.averages, session);  // frozen ones have none
}

}  // namespace trainyard::engine
