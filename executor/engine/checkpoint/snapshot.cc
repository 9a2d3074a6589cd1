#include "executor/engine/checkpoint/snapshot.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "storage/base/digest.h"

namespace trainyard::engine {

std::string OptimizerTensorName(const plan::Plan& plan, size_t kind, size_t position) {
  return absl::StrCat(plan.optimizer_state_names[kind], ".",
                      plan.tensors[plan.parameters[position]].name);
}

Snapshot::Snapshot(const plan::Plan& plan)
    : parameter_bytes_(plan.parameter_region.bytes),
      optimizer_bytes_(plan.optimizer_region.bytes),
      memory_(new char[parameter_bytes_ + optimizer_bytes_ + plan.buffer_region.bytes]) {
  for (plan::TensorId id : plan.parameters) {
    model_[plan.tensors[id].name] = View(plan, id, parameters(), plan.parameter_region.offset);
  }
  for (plan::TensorId id : plan.buffers) {
    const std::string& name = plan.tensors[id].name;
    model_[name] = View(plan, id, buffers(), plan.buffer_region.offset);
    if (absl::string_view norm = name; absl::ConsumeSuffix(&norm, ".running_mean")) {
      model_[absl::StrCat(norm, ".num_batches_tracked")] = {
          .dtype = "I64", .bytes = {reinterpret_cast<const char*>(&batches_), sizeof(batches_)}};
    }
  }
  for (size_t kind = 0; kind < plan.optimizer_state.size(); ++kind) {
    for (size_t i = 0; i < plan.optimizer_state[kind].size(); ++i) {
      optimizer_state_[OptimizerTensorName(plan, kind, i)] =
          View(plan, plan.optimizer_state[kind][i], optimizer(), plan.optimizer_region.offset);
    }
  }
}

TensorView Snapshot::View(const plan::Plan& plan, plan::TensorId id, const char* region_at,
                          int64_t region_offset) const {
  const plan::Tensor& tensor = plan.tensors[id];
  const char* at = region_at + (plan.offsets[id] - region_offset);
  return {.dims = tensor.dims, .bytes = {at, static_cast<size_t>(tensor.bytes())}};
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
