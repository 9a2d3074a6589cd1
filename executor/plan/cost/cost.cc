#include "executor/plan/cost/cost.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <variant>

#include "executor/plan/cost/gang_memory.h"
#include "executor/plan/cost/gang_traffic.h"
#include "executor/plan/cost/gpu_memory.h"
#include "executor/plan/graph/fold_tree.h"
#include "executor/plan/graph/pipeline.h"
#include "executor/plan/graph/stored_shards.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/ops/rules.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// A worker without any tensor: code, oneDNN and protobuf, thread stacks, and the kernels that
// oneDNN compiled. Peak resident memory less all the rest of this plan, on 2 CPU threads: mlp 20
// MiB, character GPT 20, convnet 23.
constexpr int64_t kProcessBytes = int64_t{24} << 20;

double FlopsOfAll(const std::vector<Op>& ops) {
  double flops = 0;
  for (const Op& op : ops) flops += Flops(op);
  return flops;
}

// By `bytes`, CpuScratchBytes or GpuScratchBytes.
template <typename F>
int64_t LargestWorkspace(const Plan& plan, const F& bytes) {
  int64_t largest = 0;  // the stream's scratch is shared by all ops
  for (const auto* ops : {&plan.micro, &plan.norm, &plan.end, &plan.evaluate}) {
    for (const Op& op : *ops) largest = std::max(largest, bytes(plan.tensors, op));
  }
  return largest;
}

// The CPU's cos and sin of rotary positions: one table for all ops of the same angles.
int64_t RotaryTableBytes(const Plan& plan) {
  std::set<std::tuple<float, int64_t, int64_t>> angles;  // theta, time, head_dim
  for (const auto* ops : {&plan.micro, &plan.evaluate}) {
    for (const Op& op : *ops) {
      const auto* const o = std::get_if<Rotary>(&op);
      if (o != nullptr) angles.insert({o->theta, o->time, o->head_dim});
    }
  }
  int64_t bytes = 0;
  for (const auto& [theta, time, head_dim] : angles) bytes += kFloat * time * head_dim;
  return bytes;
}

// What the data set holds, with as many threads as fill its samples.
int64_t DatasetBytes(const v1::Data& data, const DataFacts& facts) {
  const int64_t threads = data.has_threads() ? data.threads() : kThreads;
  return facts.held_bytes + threads * facts.bytes_per_thread;
}

// A score and a class of each held-out click, kept until all are ranked; generated ones are drawn
// once more, for the best scores that there can be.
int64_t ScoreBytes(const v1::JobSpec& spec, const DataFacts& facts) {
  constexpr int64_t kScoredBytes = 8;
  if (facts.kind != DataFacts::Kind::kClicks) return 0;
  const int64_t most = spec.evaluation().max_samples();
  const int64_t samples = most > 0 ? std::min(most, facts.validation_size) : facts.validation_size;
  return samples * kScoredBytes * (spec.data().has_clicks() ? 2 : 1);
}

// Batches of the held-out split that are ready or in use while it is evaluated.
constexpr int64_t kHeldOutBatches = 3;

// What a checkpoint is written from while training goes on. The last of an attempt is written from
// the state itself, or from a copy on the host of a GPU.
int64_t SnapshotBytes(const v1::CheckpointPolicy& policy, bool gpu, const Plan& plan) {
  if (!gpu && policy.every_steps() == 0 && !policy.has_best()) return 0;
  return plan.whole_parameter_bytes() + plan.whole_optimizer_bytes() + plan.ema_region.bytes +
         plan.buffer_region.bytes + BytesElsewhere(plan);
}

int64_t StagingBytes(const v1::JobSpec& spec, const DataFacts& facts, const Plan& plan) {
  const auto bytes = [&](TensorId id) { return id == kNone ? 0 : plan.tensors[id].bytes(); };
  const int64_t batch = bytes(plan.input) + bytes(plan.ids) + bytes(plan.target);
  const int64_t held_out = bytes(plan.eval_input) + bytes(plan.eval_ids) + bytes(plan.eval_target);
  const bool gpu = OnGpuAlone(spec);
  const int64_t in_use = gpu ? 2 : 1;  // executor/engine/upload_queue.h: BatchesInUse
  return SnapshotBytes(spec.checkpoint(), gpu, plan) + (spec.data().prefetch() + in_use) * batch +
         (kHeldOutBatches - 1 + in_use) * held_out + DatasetBytes(spec.data(), facts) +
         ScoreBytes(spec, facts) + GangBytes(spec, plan.logical_ranks) +
         LookUpBytes(plan, plan.data_ranks);
}

// Passes over one micro-batch know activations only, and the sharing of memory is what laid it out.
void SummarizePasses(Plan& plan) {
  const int64_t others = plan.exchanged_gradient_bytes + plan.gathered_parameter_bytes;
  const int64_t gradients = plan.gradient_region.bytes + others;
  v1::PlanSummary& s = plan.summary;
  for (v1::PassSummary& pass : *s.mutable_passes()) {
    pass.set_bytes_before(pass.bytes_before() + gradients);
    pass.set_bytes_after(pass.bytes_after() + gradients);
  }
  if (gradients == 0) return;
  const auto ops = static_cast<int32_t>(plan.micro.size());
  v1::PassSummary& share = *s.add_passes();
  share.set_name("share_gradients");
  share.set_bytes_before(gradients + plan.activation_bytes + plan.step_copy_bytes);
  share.set_bytes_after(plan.gradient_region.bytes + plan.activation_region.bytes);
  share.set_ops_before(ops);
  share.set_ops_after(ops);
}

}  // namespace

double FlopsPerStep(const Plan& plan) {
  return (FlopsOfAll(plan.micro) + plan.flops_elsewhere) *
             static_cast<double>(plan.micro_batches * plan.logical_ranks) +
         FlopsOfAll(plan.end);
}

double OwnShare(const Plan& plan) {
  const double all =
      FlopsPerStep(plan) / static_cast<double>(plan.logical_ranks * plan.micro_batches);
  return all > 0 ? 1 - plan.flops_elsewhere / all : 1;
}

int64_t WorkspaceLimit(const Plan& plan, int threads) {
  return plan.summary.workspace_bytes() *
         std::max<int64_t>(1, kernels::scratch::Ceil(threads, kThreads));
}

void Summarize(const v1::JobSpec& spec, const DataFacts& facts, Plan& plan) {
  v1::PlanSummary& s = plan.summary;
  const auto count = [&](size_t position, int64_t elements) {
    s.set_parameters(s.parameters() + elements);
    const bool frozen = position >= plan.trained_of_group;
    if (frozen) s.set_frozen_parameters(s.frozen_parameters() + elements);
  };
  for (size_t i = 0; i < plan.of_group.size(); ++i) {
    const Tensor& parameter = plan.tensors[plan.of_group[i]];
    if (!plan.host.Divides(parameter)) count(i, parameter.elements());
  }
  for (const StoredInShards& tensor : StoredShards(plan)) {  // what several shards have counts once
    count(tensor.pieces[0].position, tensor.stored.elements());
  }
  // However many ranks there are, together they make the optimizer's step once; but for tables kept
  // by row that are not shared out, of which each makes that of few rows, and for shares with a
  // second owner.
  s.set_flops_per_step(FlopsPerStep(plan));
  s.set_total_steps(plan.total_steps);
  s.set_parameter_bytes(plan.parameter_region.bytes +
                        std::max(plan.weight_region.bytes, plan.most_weight_bytes) +
                        plan.gathered_parameter_bytes);
  s.set_weight_copy_bytes(plan.copy_region.bytes + plan.step_copy_bytes);
  s.set_gradient_bytes(plan.gradient_region.bytes + plan.partial_region.bytes +
                       plan.rows_region.bytes + plan.share_region.bytes +
                       plan.exchanged_gradient_bytes);
  s.set_optimizer_bytes(
      std::max(plan.optimizer_region.bytes, plan.whole_state_bytes + plan.most_optimizer_bytes));
  s.set_buffer_bytes(plan.buffer_region.bytes + plan.pending_region.bytes +
                     plan.moments_region.bytes);
  s.set_ema_bytes(plan.ema_region.bytes);
  s.set_activation_bytes(plan.activation_bytes + plan.scalar_region.bytes +
                         plan.unread_region.bytes + plan.leaves_region.bytes +
                         plan.sums_region.bytes + plan.flight_region.bytes +
                         plan.batch_region.bytes);
  s.set_shared_bytes(plan.activation_bytes + plan.step_copy_bytes + plan.exchanged_gradient_bytes +
                     plan.gathered_parameter_bytes - plan.activation_region.bytes);
  s.set_sent_bytes_per_step(MostTraffic(plan).bytes());
  if (const Mesh mesh = MeshOf(spec); mesh.pipeline > 1) {
    const int64_t hosted = HostedBy(plan.logical_ranks, mesh.data, mesh.data - 1).size();
    s.set_bubble_share(BubbleShare(plan.host.pipeline(), hosted * plan.micro_batches));
  }
  s.set_staging_bytes(StagingBytes(spec, facts, plan));
  const bool gpu = OnGpuAlone(spec);
  if (gpu) {
    s.set_device(v1::Resources::CUDA);
    s.set_workspace_bytes(LargestWorkspace(plan, GpuScratchBytes));
    s.set_inbox_bytes(UploadQueueBytes(plan) + ReceivedBytes(plan));
    s.set_process_bytes(kGpuProcessBytes + (spec.resources().max_slots() > 1 ? kNcclBytes : 0));
  } else {
    s.set_device(v1::Resources::CPU);
    s.set_workspace_bytes(LargestWorkspace(plan, CpuScratchBytes) + RotaryTableBytes(plan));
    s.set_process_bytes(kProcessBytes);
  }
  s.set_bytes_per_slot(s.parameter_bytes() + s.weight_copy_bytes() + s.gradient_bytes() +
                       s.optimizer_bytes() + s.ema_bytes() + s.buffer_bytes() +
                       s.activation_bytes() + s.workspace_bytes() + s.inbox_bytes() +
                       (gpu ? 0 : s.staging_bytes()) + s.process_bytes() - s.shared_bytes());
  SummarizePasses(plan);
}

}  // namespace trainyard::plan
