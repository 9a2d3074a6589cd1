#include "executor/engine/checkpoint/snapshot.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/digest.h"

namespace trainyard::engine {

namespace {

// What a checkpoint stores of `parameter`, as found in a tensor of its shape at `data`.
void AddViews(const std::string& prefix, const plan::Tensor& parameter, const char* data,
              std::map<std::string, TensorView>& views) {
  for (const plan::StoredTensor& stored : plan::Stored(parameter)) {
    int64_t elements = 1;
    for (const int64_t dim : stored.dims) elements *= dim;
    views[prefix + stored.name] = {stored.dims,
                                   reinterpret_cast<const float*>(data + stored.offset), elements};
  }
}

}  // namespace

std::string OptimizerPrefix(const plan::Plan& plan, size_t kind) {
  return absl::StrCat(plan.optimizer_state_names[kind], ".");
}

Snapshot::Snapshot(const plan::Plan& plan)
    : parameter_bytes_(plan.parameter_region.bytes),
      memory_(new char[plan.parameter_region.bytes + plan.optimizer_region.bytes]) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const plan::Tensor& parameter = plan.tensors[plan.parameters[i]];
    const int64_t at = plan.offsets[plan.parameters[i]] - plan.parameter_region.offset;
    AddViews("", parameter, parameters() + at, model_);
    for (size_t kind = 0; kind < plan.optimizer_state.size(); ++kind) {
      const int64_t state_at =
          plan.offsets[plan.optimizer_state[kind][i]] - plan.optimizer_region.offset;
      AddViews(OptimizerPrefix(plan, kind), parameter, optimizer() + state_at, optimizer_state_);
    }
  }
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
