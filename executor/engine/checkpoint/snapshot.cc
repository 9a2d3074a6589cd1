#include "executor/engine/checkpoint/snapshot.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "executor/engine/checkpoint/adapter.h"
#include "executor/plan/graph/stored_shards.h"
#include "executor/plan/passes/shard_optimizer.h"
#include "storage/base/status.h"

namespace trainyard::engine {

namespace {

// Adds a view of each tensor that a checkpoint stores of `parameter`; `data` is the start of a
// tensor of its shape.
void AddViews(const std::string& prefix, const plan::Tensor& parameter, const char* data,
              std::map<std::string, TensorView>& views) {
  for (const plan::StoredTensor& stored : plan::Stored(parameter)) {
    size_t bytes = sizeof(float);
    for (const int64_t dim : stored.dims) bytes *= dim;
    views[prefix + stored.name] = {.dims = stored.dims, .bytes = {data + stored.offset, bytes}};
  }
}

}  // namespace

std::string AveragePrefix() { return "ema."; }

std::string OptimizerPrefix(const plan::Plan& plan, size_t kind) {
  return absl::StrCat(plan.optimizer_state_names[kind], ".");
}

Snapshot::Snapshot(const plan::Plan& plan, v1::Model model, Allocate allocate)
    : plan_(plan), model_spec_(std::move(model)), allocate_(std::move(allocate)) {}

Snapshot::Room Snapshot::Own() {
  const int64_t optimizer = plan_.whole_parameter_bytes();
  const int64_t averages = optimizer + plan_.whole_optimizer_bytes();
  const int64_t buffers = averages + plan_.ema_region.bytes;
  const int64_t elsewhere = buffers + plan_.buffer_region.bytes;
  if (memory_ == nullptr) {
    const auto bytes = static_cast<size_t>(elsewhere + plan::BytesElsewhere(plan_));
    memory_ = allocate_ ? allocate_(bytes) : std::make_shared_for_overwrite<char[]>(bytes);
  }
  char* const begin = memory_.get();
  const Room room = {.parameters = begin,
                     .optimizer = begin + optimizer,
                     .averages = begin + averages,
                     .buffers = begin + buffers};
  elsewhere_ = begin + elsewhere;
  Borrow({.parameters = room.parameters,
          .optimizer = room.optimizer,
          .averages = room.averages,
          .buffers = room.buffers});
  return room;
}

plan::TensorId Snapshot::TensorOf(const plan::Plan& plan, int64_t what, size_t position) {
  if (what == kWeights) return plan.parameters[position];
  if (what == kAverages) {
    return position < plan.averages.size() ? plan.averages[position] : plan::kNone;
  }
  const bool known = what >= 0 && what < static_cast<int64_t>(plan.optimizer_state.size());
  return known ? plan.optimizer_state[what][position] : plan::kNone;
}

template <typename F>
void Snapshot::ForEachElsewhere(const F& f) const {
  for (size_t i = 0; i < plan_.of_group.size(); ++i) {
    const plan::Tensor& parameter = plan_.tensors[plan_.of_group[i]];
    const bool hosted = plan_.host.hosts(parameter);
    if (!hosted) f(kWeights, i, parameter);
    if (i >= plan_.trained_of_group) continue;
    if (!hosted && !plan_.averages.empty()) f(kAverages, i, parameter);
    if (hosted && !plan_.state_by_parameter()) continue;
    for (size_t kind = 0; kind < plan_.has_state.size(); ++kind) {
      if (plan_.has_state[kind][i]) f(static_cast<int64_t>(kind), i, parameter);
    }
  }
}

absl::Status Snapshot::ReadElsewhere(const ReadShard& elsewhere) {
  auto* to = reinterpret_cast<float*>(elsewhere_);
  absl::Status status;
  ForEachElsewhere([&](int64_t what, size_t position, const plan::Tensor& tensor) {
    const absl::Span<float> values = {to, static_cast<size_t>(tensor.elements())};
    if (status.ok()) status = elsewhere(what, position, 0, values);
    to += tensor.elements();
  });
  return status;
}

namespace {

// A stored tensor by its pieces: where they lie, by position, and how those that lie nowhere here
// are read.
struct Pieces {
  plan::StoredInShards tensor;
  std::shared_ptr<const std::vector<const char*>> data;
  std::function<absl::Status(size_t position, int64_t first, absl::Span<float> to)> elsewhere;

  absl::Status Read(int64_t first, absl::Span<float> to) const {
    const auto count = static_cast<int64_t>(to.size());
    std::vector<float> read;
    for (size_t i = 0; i < tensor.pieces.size();) {
      // The pieces of one shard, which may be read at once.
      const size_t position = tensor.pieces[i].position;
      size_t next = i;
      plan::ElementRange range;  // what they are of the shard
      for (; next < tensor.pieces.size() && tensor.pieces[next].position == position; ++next) {
        plan::ForEachRunOf(tensor.pieces[next], tensor, first, count,
                           [&](int64_t offset, int64_t, int64_t n) {
                             range.first = range.end == 0 ? offset : std::min(range.first, offset);
                             range.end = std::max(range.end, offset + n);
                           });
      }
      const char* begin = (*data)[position];
      int64_t from = 0;
      if (begin == nullptr && range.size() > 0) {
        from = range.first;
        read.resize(range.size());
        TY_RETURN_IF_ERROR(elsewhere(position, from, absl::MakeSpan(read)));
        begin = reinterpret_cast<const char*>(read.data());
      }
      for (; i < next; ++i) {
        plan::ForEachRunOf(
            tensor.pieces[i], tensor, first, count, [&](int64_t offset, int64_t at, int64_t n) {
              memcpy(to.data() + at, begin + (offset - from) * sizeof(float), n * sizeof(float));
            });
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

void Snapshot::AddShards(int64_t what, const std::string& prefix,
                         std::vector<const char*> of_parameters, const ReadShard& elsewhere,
                         std::map<std::string, TensorView>& views) const {
  std::vector<const char*> of_group =
      plan::ByGroup(plan_, of_parameters, static_cast<const char*>(nullptr));
  std::vector<bool> there(of_group.size());
  for (size_t i = 0; i < there.size(); ++i) there[i] = of_group[i] != nullptr;
  int64_t copied = 0;  // bytes from elsewhere_ on
  ForEachElsewhere([&](int64_t of, size_t position, const plan::Tensor& tensor) {
    if (of == what) there[position] = true;
    if (of == what && !elsewhere) of_group[position] = elsewhere_ + copied;
    copied += tensor.bytes();
  });
  // One list for all views: with many shards of many layers it is long.
  const auto data = std::make_shared<const std::vector<const char*>>(std::move(of_group));
  for (size_t i = 0; i < there.size(); ++i) {
    const plan::Tensor& parameter = plan_.tensors[plan_.of_group[i]];
    if (!there[i] || plan_.host.Divides(parameter)) continue;
    if ((*data)[i] != nullptr) {
      AddViews(prefix, parameter, (*data)[i], views);
      continue;
    }
    for (const plan::StoredTensor& stored : plan::Stored(parameter)) {
      const int64_t begin = stored.offset / static_cast<int64_t>(sizeof(float));
      views[prefix + stored.name] = {
          .dims = stored.dims,
          .read = [elsewhere, what, i, begin](int64_t first, absl::Span<float> to) {
            return elsewhere(what, i, begin + first, to);
          }};
    }
  }
  for (const plan::StoredInShards& tensor : plan::StoredShards(plan_)) {
    if (!there[tensor.pieces[0].position]) continue;
    const Pieces pieces = {
        .tensor = tensor,
        .data = data,
        .elsewhere = [elsewhere, what](size_t position, int64_t first, absl::Span<float> to) {
          return elsewhere(what, position, first, to);
        }};
    views[prefix + tensor.stored.name] = {
        .dims = tensor.stored.dims,
        .read = [pieces](int64_t first, absl::Span<float> to) { return pieces.Read(first, to); }};
  }
}

void Snapshot::Borrow(const Places& places, const ReadShard& elsewhere) {
  const auto at = [this](const char* begin, const plan::Region& region, plan::TensorId id) {
    return begin + (plan_.offsets[id] - region.offset);
  };
  // Shows what `of_parameter` says goes with each parameter: where it begins, or null.
  const auto show = [&](int64_t what, const std::string& prefix, auto&& of_parameter,
                        std::map<std::string, TensorView>& views) {
    std::vector<const char*> shards(plan_.parameters.size());
    for (size_t i = 0; i < plan_.parameters.size(); ++i) {
      const plan::Tensor& parameter = plan_.tensors[plan_.parameters[i]];
      const char* const begin = of_parameter(i);
      if (begin == nullptr) continue;
      if (plan_.host.Divides(parameter)) {
        shards[i] = begin;
      } else {
        AddViews(prefix, parameter, begin, views);
      }
    }
    AddShards(what, prefix, std::move(shards), elsewhere, views);
  };
  const size_t sharded = plan_.parameters_sharded ? plan_.shared_out() : 0;
  const auto parameter_at = [&](size_t i) -> const char* {
    if (i < sharded) return nullptr;
    return at(places.parameters, plan_.parameter_region, plan_.parameters[i]);
  };
  show(kWeights, "", parameter_at, model_);
  for (size_t kind = 0; kind < plan_.optimizer_state.size(); ++kind) {
    const auto state_at = [&](size_t i) -> const char* {
      const plan::TensorId state = plan_.optimizer_state[kind][i];
      return state == plan::kNone ? nullptr : at(places.optimizer, plan_.optimizer_region, state);
    };
    show(static_cast<int64_t>(kind), OptimizerPrefix(plan_, kind), state_at, optimizer_state_);
  }
  for (const plan::TensorId id : plan_.buffers) {
    const plan::Tensor& buffer = plan_.tensors[id];
    AddViews("", buffer, at(places.buffers, plan_.buffer_region, id), model_);
    if (absl::string_view norm = buffer.name; absl::ConsumeSuffix(&norm, ".running_mean")) {
      model_[absl::StrCat(norm, ".num_batches_tracked")] = {
          .dtype = "I64", .bytes = {reinterpret_cast<const char*>(&batches_), sizeof(batches_)}};
    }
  }
  if (!plan_.averages.empty()) ema_ = model_;
  const auto average_at = [&](size_t i) -> const char* {
    return i < plan_.averages.size() ? at(places.averages, plan_.ema_region, plan_.averages[i])
                                     : nullptr;
  };
  show(kAverages, "", average_at, ema_);
  if (!plan_.adapters.empty()) SetAdaptersApart();
}

template <typename F>
void Snapshot::ForEachState(const F& f) const {
  const std::vector<plan::PlacedTensor> placed = plan::PlacedTensors(plan_, plan_.shared_out());
  const int64_t first = plan_.parameters_sharded ? kWeights : 0;
  for (int64_t what = first; what < static_cast<int64_t>(plan_.has_state.size()); ++what) {
    for (const plan::PlacedTensor& p : placed) {
      if (what == kWeights || plan_.has_state[what][p.position]) {
        f(what, p.stored, p.elements.first);
      }
    }
  }
}

TensorView& Snapshot::ViewOf(int64_t what, const std::string& name) {
  return what == kWeights ? model_[name] : optimizer_state_[OptimizerPrefix(plan_, what) + name];
}

void Snapshot::BorrowState(ReadState read) {
  ForEachState([&](int64_t what, const plan::StoredTensor& stored, int64_t begin) {
    ViewOf(what, stored.name) = {.dims = stored.dims,
                                 .read = [read, what, begin](int64_t first, absl::Span<float> to) {
                                   return read(what, begin + first, to);
                                 }};
  });
}

absl::Status Snapshot::ReadStateInto(const Room& room, const ReadState& read) {
  auto* weights = reinterpret_cast<float*>(room.parameters + plan_.parameter_region.bytes);
  auto* state = reinterpret_cast<float*>(room.optimizer + plan_.whole_state_bytes);
  absl::Status status;
  ForEachState([&](int64_t what, const plan::StoredTensor& stored, int64_t begin) {
    float*& to = what == kWeights ? weights : state;
    const absl::Span<float> values = {to, static_cast<size_t>(stored.elements())};
    if (status.ok()) status = read(what, begin, values);
    ViewOf(what, stored.name) = {
        .dims = stored.dims,
        .bytes = {reinterpret_cast<const char*>(to), values.size() * sizeof(float)}};
    to += stored.elements();
  });
  return status;
}

// Moves the adapters out of model_ and ema_; the weights there that are adapted get them as terms.
void Snapshot::SetAdaptersApart() {
  adapter_.clear();
  base_.clear();
  const auto merge = [&](const plan::Adapter& adapter, std::map<std::string, TensorView>& model) {
    const auto matrix = [&](plan::TensorId id) {
      return reinterpret_cast<const float*>(model.at(plan_.tensors[id].name).bytes.data());
    };
    model.at(adapter.stored.name).term = {.a = matrix(adapter.a),
                                          .b = matrix(adapter.b),
                                          .rank = plan_.tensors[adapter.a].dims[0],
                                          .in_out = adapter.in_out,
                                          .scale = adapter.scale};
  };
  for (const plan::Adapter& adapter : plan_.adapters) {
    base_[adapter.stored.name] = model_.at(adapter.stored.name);
    merge(adapter, model_);
    if (!ema_.empty()) merge(adapter, ema_);
    for (const plan::TensorId id : {adapter.a, adapter.b}) {
      const std::string& name = plan_.tensors[id].name;
      adapter_[kPeftPrefix + name] = model_.at(name);
      model_.erase(name);
      if (ema_.empty()) continue;
      base_[AveragePrefix() + name] = ema_.at(name);
      ema_.erase(name);
    }
  }
  const std::set<std::string> modules = TrainedModules(plan_);
  for (const auto& [name, view] : model_) {
    if (modules.contains(ModuleOf(name))) adapter_[kPeftPrefix + name] = view;
  }
  const std::optional<TiedHead> head = TiedHeadOf(model_spec_);
  if (!head || !modules.contains(ModuleOf(head->embedding))) return;
  for (const auto& [name, shared] : head->tensors) {
    adapter_[absl::StrCat(kPeftPrefix, head->module, ".", name)] = model_.at(shared);
  }
}

}  // namespace trainyard::engine
