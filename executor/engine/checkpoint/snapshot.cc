#include "executor/engine/checkpoint/snapshot.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/digest.h"

namespace trainyard::engine {

std::string OptimizerTensorName(const plan::Plan& plan, size_t kind, size_t position) {
  return absl::StrCat(plan.optimizer_state_names[kind], ".",
                      plan.tensors[plan.parameters[position]].name);
}

Snapshot::Snapshot(const plan::Plan& plan)
    : parameter_bytes_(plan.parameter_region.bytes),
      memory_(new char[plan.parameter_region.bytes + plan.optimizer_region.bytes]) {
  for (plan::TensorId id : plan.parameters) {
    model_[plan.tensors[id].name] = View(plan, id, parameters(), plan.parameter_region.offset);
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
  return {tensor.dims, reinterpret_cast<const float*>(at), tensor.elements()};
}

std::string WeightsDigest(const std::map<std::string, TensorView>& model) {
  Sha256 sha;
  for (const auto& [name, tensor] : model) {
    sha.Add(absl::StrCat(name, " [", absl::StrJoin(tensor.dims, ","), "]\n"));
    sha.Add(tensor.data, tensor.elements * sizeof(float));
  }
  return sha.Finish();
}

}  // namespace trainyard::engine
