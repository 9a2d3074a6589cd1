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
    : parameter_bytes_(plan.parameter_region.bytes),
      optimizer_bytes_(plan.optimizer_region.bytes),
      ema_bytes_(plan.ema_region.bytes),
      memory_(
          new char[parameter_bytes_ + optimizer_bytes_ + ema_bytes_ + plan.buffer_region.bytes]) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const plan::Tensor& parameter = plan.tensors[plan.parameters[i]];
    const int64_t at = plan.offsets[plan.parameters[i]] - plan.parameter_region.offset;
    AddViews("", parameter, parameters() + at, model_);
    for (size_t kind = 0; kind < plan.optimizer_state.size(); ++kind) {
      if (plan.optimizer_state[kind][i] == plan::kNone) continue;
      const int64_t state_at =
          plan.offsets[plan.optimizer_state[kind][i]] - plan.optimizer_region.offset;
      AddViews(OptimizerPrefix(plan, kind), parameter, optimizer() + state_at, optimizer_state_);
    }
  }
  for (plan::TensorId id : plan.buffers) {
    const plan::Tensor& buffer = plan.tensors[id];
    AddViews("", buffer, buffers() + plan.offsets[id] - plan.buffer_region.offset, model_);
    if (absl::string_view norm = buffer.name; absl::ConsumeSuffix(&norm, ".running_mean")) {
      model_[absl::StrCat(norm, ".num_batches_tracked")] = {
          .dtype = "I64", .bytes = {reinterpret_cast<const char*>(&batches_), sizeof(batches_)}};
    }
  }
  if (!plan.averages.empty()) ema_ = model_;
  for (size_t i = 0; i < plan.averages.size(); ++i) {
    const int64_t at = plan.offsets[plan.averages[i]] - plan.ema_region.offset;
    AddViews("", plan.tensors[plan.parameters[i]], averages() + at, ema_);
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
