#include <cmath>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "executor/plan/cost.h"
#include "executor/plan/plan.h"

namespace trainyard::plan {

namespace {

struct OpNameOf {
  const char* operator()(const ActivationBackward&) const { return "activation_backward"; }
  const char* operator()(const ActivationForward&) const { return "activation"; }
  const char* operator()(const AdamWRows&) const { return "adamw_rows"; }
  const char* operator()(const AdamWStep&) const { return "adamw"; }
  const char* operator()(const Add&) const { return "add"; }
  const char* operator()(const AttentionBackward&) const { return "attention_backward"; }
  const char* operator()(const AttentionForward&) const { return "attention"; }
  const char* operator()(const BatchNormBackward&) const { return "batch_norm_backward"; }
  const char* operator()(const BatchNormForward&) const { return "batch_norm"; }
  const char* operator()(const BatchNormInference&) const { return "batch_norm_inference"; }
  const char* operator()(const BinaryCrossEntropy&) const { return "binary_cross_entropy"; }
  const char* operator()(const ClipScale&) const { return "clip_scale"; }
  const char* operator()(const ColumnSum&) const { return "column_sum"; }
  const char* operator()(const ConvolutionBackwardData&) const { return "convolution_dx"; }
  const char* operator()(const ConvolutionBackwardWeights&) const { return "convolution_dw"; }
  const char* operator()(const ConvolutionForward&) const { return "convolution"; }
  const char* operator()(const CountTargets&) const { return "count_targets"; }
  const char* operator()(const CrossEntropy&) const { return "cross_entropy"; }
  const char* operator()(const Dropout&) const { return "dropout"; }
  const char* operator()(const EmbeddingBackward&) const { return "embedding_backward"; }
  const char* operator()(const EmbeddingForward&) const { return "embedding"; }
  const char* operator()(const EmbeddingTablesBackward&) const {
    return "embedding_tables_backward";
  }
  const char* operator()(const EmbeddingTablesForward&) const { return "embedding_tables"; }
  const char* operator()(const InteractionBackward&) const { return "interaction_backward"; }
  const char* operator()(const InteractionForward&) const { return "interaction"; }
  const char* operator()(const KeepRows&) const { return "keep_rows"; }
  const char* operator()(const LayerNormBackward& o) const {
    return o.mean == kNone ? "rms_norm_backward" : "layer_norm_backward";
  }
  const char* operator()(const LayerNormForward& o) const {
    return o.mean == kNone ? "rms_norm" : "layer_norm";
  }
  const char* operator()(const Matmul&) const { return "matmul"; }
  const char* operator()(const MaxPoolBackward&) const { return "max_pool_backward"; }
  const char* operator()(const MaxPoolForward&) const { return "max_pool"; }
  const char* operator()(const MeanPoolBackward&) const { return "mean_pool_backward"; }
  const char* operator()(const MeanPoolForward&) const { return "mean_pool"; }
  const char* operator()(const MergeRows&) const { return "merge_rows"; }
  const char* operator()(const Rotary&) const { return "rotary"; }
  const char* operator()(const SgdRows&) const { return "sgd_rows"; }
  const char* operator()(const SgdStep&) const { return "sgd"; }
  const char* operator()(const SquaredNorm&) const { return "squared_norm"; }
  const char* operator()(const Sum&) const { return "sum"; }
  const char* operator()(const SwiGluBackward&) const { return "swiglu_backward"; }
  const char* operator()(const SwiGluForward&) const { return "swiglu"; }
  const char* operator()(const Transpose&) const { return "transpose"; }
  const char* operator()(const Zero&) const { return "zero"; }
};

std::string Bytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return absl::StrFormat("%.1f %s", value, units[unit]);
}

// "  matmul               a[12, 128] -> b[128, 384]": what is read, then what is written.
std::string Line(const Plan& plan, Op op) {
  std::vector<std::string> in, out;
  const auto name = [&](TensorId id) {
    const Tensor& tensor = plan.tensors[id];
    return absl::StrCat(tensor.name, "[", absl::StrJoin(tensor.dims, ", "), "]");
  };
  std::visit(
      [&](auto& o) {
        o.Visit([&](TensorId id, Access access) {
          if (access == Access::kRead) in.push_back(name(id));
          if (access == Access::kWrite) out.push_back(name(id));
          if (access == Access::kUpdate) out.push_back(absl::StrCat("+", name(id)));
        });
      },
      op);
  return absl::StrFormat("  %-20s %s -> %s\n", OpName(op), absl::StrJoin(in, " "),
                         absl::StrJoin(out, " "));
}

std::string Kernels(const Plan& plan, const char* title, const std::vector<Op>& ops) {
  if (ops.empty()) return "";
  std::string text = absl::StrFormat("\n%s: %d kernels\n", title, ops.size());
  for (const Op& op : ops) absl::StrAppend(&text, Line(plan, op));
  return text;
}

}  // namespace

const char* OpName(const Op& op) { return std::visit(OpNameOf{}, op); }

std::string Describe(const Plan& plan) {
  const v1::PlanSummary& s = plan.summary;
  std::string text;
  absl::StrAppendFormat(&text, "parameters      %d\n", s.parameters());
  absl::StrAppendFormat(&text, "step            %.4g GFLOP, %d x %d samples per slot\n",
                        s.flops_per_step() / 1e9, plan.micro_batches, plan.micro_batch);
  absl::StrAppendFormat(&text, "steps           %d\n", s.total_steps());
  absl::StrAppendFormat(&text, "bytes per slot  %s\n", Bytes(s.bytes_per_slot()));
  const std::pair<const char*, int64_t> parts[] = {
      {"parameters", s.parameter_bytes()},   {"gradients", s.gradient_bytes()},
      {"optimizer", s.optimizer_bytes()},    {"buffers", s.buffer_bytes()},
      {"activations", s.activation_bytes()}, {"workspace", s.workspace_bytes()},
      {"staging", s.staging_bytes()},        {"process", s.process_bytes()},
  };
  for (const auto& [name, bytes] : parts) {
    absl::StrAppendFormat(&text, "  %-13s %s\n", name, Bytes(bytes));
  }
  absl::StrAppend(&text, Kernels(plan, "begin of a step", plan.begin),
                  Kernels(plan, "each micro-batch", plan.micro),
                  Kernels(plan, "norm of the gradient", plan.norm),
                  Kernels(plan, "end of a step", plan.end),
                  Kernels(plan, "evaluation batch", plan.evaluate));
  return text;
}

}  // namespace trainyard::plan
