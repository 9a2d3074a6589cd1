#include "executor/engine/checkpoint/snapshot.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "storage/base/digest.h"

namespace trainyard::engine {

namespace {

// What a checkpoint stores of `parameter`, as found in a tensor of its shape at `data`.
void AddViews(const std::string& prefix, const plan::Tensor& parameter, const char* data,
              std::map<std::string, TensorView>& views) {
  for (const plan::StoredTensor& stored : plan::Stored(parameter)) {
    size_t bytes = sizeof(float);
    for (const int64_t dim : stored.dims) bytes *= dim;
    views[prefix + stored.name] = {.dims = stored.dims, .bytes = {data + stored.offset, bytes}};
  }
}

}  // namespace

std::string OptimizerPrefix(const plan::Plan& plan, size_t kind) {
  return absl::StrCat(plan.optimizer_state_names[kind], ".");
}

Snapshot::Snapshot(const plan::Plan& plan)
    : plan_(plan),
      parameter_bytes_(plan.parameter_region.bytes),
      optimizer_bytes_(plan.optimizer_region.bytes),
      ema_bytes_(plan.ema_region.bytes),
      memory_(
          new char[parameter_bytes_ + optimizer_bytes_ + ema_bytes_ + plan.buffer_region.bytes]) {
  Borrow({.parameters = parameters(),
          .optimizer = optimizer(),
          .averages = averages(),
          .buffers = buffers()});
}

void Snapshot::Borrow(const Places& places) {
  const auto at = [this](const char* begin, const plan::Region& region, plan::TensorId id) {
    return begin + (plan_.offsets[id] - region.offset);
  };
  for (size_t i = 0; i < plan_.parameters.size(); ++i) {
    const plan::TensorId id = plan_.parameters[i];
    const plan::Tensor& parameter = plan_.tensors[id];
    AddViews("", parameter, at(places.parameters, plan_.parameter_region, id), model_);
    for (size_t kind = 0; kind < plan_.optimizer_state.size(); ++kind) {
      const plan::TensorId state = plan_.optimizer_state[kind][i];
      if (state == plan::kNone) continue;
      AddViews(OptimizerPrefix(plan_, kind), parameter,
               at(places.optimizer, plan_.optimizer_region, state), optimizer_state_);
    }
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
  for (size_t i = 0; i < plan_.averages.size(); ++i) {
    AddViews("", plan_.tensors[plan_.parameters[i]],
             at(places.averages, plan_.ema_region, plan_.averages[i]), ema_);
  }
}

std::string WeightsDigest(const std::map<std::string, TensorView>& model) {
  Sha256 sha;
  for (const auto& [name, tensor] : model) {
    sha.Add(absl::StrCat(name, " [", absl::StrJoin(tensor.dims, ","), "]\n"));
    sha.Add(tensor.bytes);
  }
  return sha.Finish();
}

}  // namespace trainyard::engine
