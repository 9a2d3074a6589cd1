#include "executor/plan/describe.h"

#include <cmath>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "executor/plan/ops/op.h"
#include "storage/base/printable.h"

namespace trainyard::plan {

namespace {

const char* TypeName(ElementType type) {
  switch (type) {
    case ElementType::kBF16:
      return ":bf16";
    case ElementType::kF16:
      return ":f16";
    case ElementType::kU8:
      return ":u8";
    default:
      return "";
  }
}

// "  matmul               a[12, 128] -> b[128, 384]": what is read, then what is written.
std::string Line(const Plan& plan, const Op& op) {
  std::vector<std::string> in, out;
  const auto name = [&](TensorId id) {
    const Tensor& tensor = plan.tensors[id];
    const std::string apart = tensor.row_stride == 0 ? "" : absl::StrCat(" of ", tensor.row_stride);
    return absl::StrCat(tensor.name, "[", absl::StrJoin(tensor.dims, ", "), apart, "]",
                        TypeName(tensor.type));
  };
  VisitOperands(op, [&](TensorId id, Access access) {
    if (access == Access::kRead) in.push_back(name(id));
    if (access == Access::kWrite) out.push_back(name(id));
    if (access == Access::kUpdate) out.push_back(absl::StrCat("+", name(id)));
  });
  return absl::StrFormat("  %-20s %s -> %s\n", OpName(op), absl::StrJoin(in, " "),
                         absl::StrJoin(out, " "));
}

// What a pass saved, and for how much more work.
std::string Line(const v1::PassSummary& pass) {
  std::string line =
      absl::StrFormat("pass %s: %s -> %s of gradients and activations", pass.name(),
                      DescribeBytes(pass.bytes_before()), DescribeBytes(pass.bytes_after()));
  if (pass.added_flops() != 0) {
    absl::StrAppendFormat(&line, ", %.4g GFLOP more", pass.added_flops() / 1e9);
  }
  if (pass.ops_after() != pass.ops_before()) {
    absl::StrAppendFormat(&line, ", kernels of a micro-batch %d -> %d", pass.ops_before(),
                          pass.ops_after());
  }
  return line + "\n";
}

std::string Kernels(const Plan& plan, const char* title, const std::vector<Op>& ops) {
  if (ops.empty()) return "";
  std::string text = absl::StrFormat("\n%s: %d kernels\n", title, ops.size());
  for (const Op& op : ops) absl::StrAppend(&text, Line(plan, op));
  return text;
}

std::string Folds(const Plan& plan) {
  std::vector<Op> ops;
  for (const std::vector<Op>& fold : plan.folds) ops.insert(ops.end(), fold.begin(), fold.end());
  return Kernels(plan, "sums of logical ranks", ops);
}

}  // namespace

std::string Describe(const Plan& plan) {
  const v1::PlanSummary& s = plan.summary;
  std::string text;
  absl::StrAppendFormat(&text, "parameters      %d\n", s.parameters());
  if (s.frozen_parameters() > 0) {
    absl::StrAppendFormat(&text, "  frozen        %d\n", s.frozen_parameters());
  }
  absl::StrAppendFormat(&text, "step            %.4g GFLOP, %d x %d samples",
                        s.flops_per_step() / 1e9, plan.micro_batches, plan.micro_batch);
  if (plan.logical_ranks > 1) {
    absl::StrAppendFormat(&text, " of each of %d logical ranks", plan.logical_ranks);
  }
  absl::StrAppend(&text, "\n");
  absl::StrAppendFormat(&text, "steps           %d\n", s.total_steps());
  absl::StrAppendFormat(&text, "bytes per slot  %s\n", DescribeBytes(s.bytes_per_slot()));
  const bool gpu = s.device() == v1::Resources::CUDA;
  const std::pair<const char*, int64_t> parts[] = {
      {"parameters", s.parameter_bytes()},
      {"weight copies", s.weight_copy_bytes()},
      {"gradients", s.gradient_bytes()},
      {"optimizer", s.optimizer_bytes()},
      {"ema", s.ema_bytes()},
      {"buffers", s.buffer_bytes()},
      {"activations", s.activation_bytes()},
      {"workspace", s.workspace_bytes()},
      {gpu ? "inbox" : "staging", gpu ? s.inbox_bytes() : s.staging_bytes()},
      {gpu ? "context" : "process", s.process_bytes()},
  };
  for (const auto& [name, bytes] : parts) {
    absl::StrAppendFormat(&text, "  %-13s %s\n", name, DescribeBytes(bytes));
  }
  absl::StrAppendFormat(&text, "  %-13s -%s, of activations and copies where gradients are to be\n",
                        "shared", DescribeBytes(s.shared_bytes()));
  if (gpu) absl::StrAppendFormat(&text, "host staging    %s\n", DescribeBytes(s.staging_bytes()));
  if (s.sent_bytes_per_step() > 0) {
    absl::StrAppendFormat(&text, "sent per step   %s\n", DescribeBytes(s.sent_bytes_per_step()));
  }
  if (s.bubble_share() > 0) {
    const ShardHost& host = plan.host;
    const std::string in_chunks =
        host.chunks == 1 ? "" : absl::StrCat(" in ", host.chunks, " chunks");
    absl::StrAppendFormat(&text,
                          "pipeline        stage %d of %d%s, %d %s in flight, %.0f%% of a step "
                          "waiting\n",
                          host.stage() + 1, host.stages, in_chunks, plan.in_flight.flights,
                          host.chunks == 1 ? "micro-batches" : "chunks of micro-batches",
                          100 * s.bubble_share());
  }
  for (const v1::PassSummary& pass : s.passes()) absl::StrAppend(&text, Line(pass));
  absl::StrAppend(&text, Kernels(plan, "begin of a step", plan.begin),
                  Kernels(plan, "begin of a logical rank", plan.zero),
                  Kernels(plan, "each micro-batch", plan.micro), Folds(plan),
                  Kernels(plan, "norm of the gradient", plan.norm),
                  Kernels(plan, "end of a step", plan.end),
                  Kernels(plan, "buffers, by each micro-batch", plan.move_buffers),
                  Kernels(plan, "begin of an evaluation", plan.evaluate_begin),
                  Kernels(plan, "evaluation batch", plan.evaluate));
  return text;
}

}  // namespace trainyard::plan
