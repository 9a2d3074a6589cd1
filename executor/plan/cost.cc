#include "executor/plan/cost.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <variant>

#include "executor/plan/memory.h"
#include "executor/plan/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kFloat = 4;

// A worker without any tensor: code, oneDNN and protobuf, thread stacks, and the kernels that
// oneDNN compiled. Peak resident memory less all the rest of this plan, on 2 CPU threads: mlp 20
// MiB, character GPT 20, convnet 23.
constexpr int64_t kProcessBytes = int64_t{24} << 20;

int64_t OutHeight(const ConvolutionShape& s) {
  return (s.height + 2 * s.pad - s.kernel_height) / s.stride + 1;
}
int64_t OutWidth(const ConvolutionShape& s) {
  return (s.width + 2 * s.pad - s.kernel_width) / s.stride + 1;
}

double ConvolutionFlops(const ConvolutionShape& s) {
  return 2.0 * static_cast<double>(s.batch * OutHeight(s) * OutWidth(s)) *
         static_cast<double>(s.out * (s.in / s.groups)) *
         static_cast<double>(s.kernel_height * s.kernel_width);
}

// `products`: how many [time, time, head_dim] products an attention makes per head.
double AttentionFlops(double products, int64_t batch, int64_t time, int64_t heads, int64_t head_dim,
                      bool causal) {
  return products * 2.0 * static_cast<double>(batch * heads * head_dim) *
         static_cast<double>(time) * static_cast<double>(time) * (causal ? 0.5 : 1.0);
}

double InteractionFlops(int64_t batch, int64_t count, int64_t width) {
  return static_cast<double>(batch * width) * static_cast<double>(count * (count + 1));
}

int64_t InputBytes(const ConvolutionShape& s) {
  return kFloat * s.batch * s.height * s.width * s.in;
}
int64_t WeightBytes(const ConvolutionShape& s) {
  return kFloat * s.out * (s.in / s.groups) * s.kernel_height * s.kernel_width;
}

// What the CPU back end asks for, read off its kernels with 2 threads; scratch that grows with the
// threads is counted for kThreads.
constexpr int64_t kThreads = 8;
constexpr int64_t kPanelBytes = int64_t{544} << 10;  // oneDNN's copy of a block of one operand
constexpr int64_t kNarrowPanelBytes = int64_t{1}
                                      << 20;  // of bf16: with tiles, and fp32 sums beside

// Both images and `copies` of the weights as Winograd's F(4x4, 3x3) takes them, and a block of
// tiles per thread; 0 where the back end sums directly, as it does in bf16.
int64_t WinogradBytes(const ConvolutionShape& s, int64_t copies) {
  const int64_t tiles = s.batch * ((s.height + 3) / 4) * ((s.width + 3) / 4);
  const bool suits = s.kernel_height == 3 && s.kernel_width == 3 && s.stride == 1 && s.pad == 1 &&
                     s.in % 16 == 0 && s.out % 16 == 0 && tiles >= 64;
  if (!suits) return 0;
  const int64_t images = kFloat * s.batch * s.height * s.width * (s.in + s.out);
  return images + 2 * WeightBytes(s) + copies * 36 * kFloat * s.in * s.out + (int64_t{18} << 20);
}

// b, packed first where its rows lie a multiple of 4 KiB apart.
int64_t PackedBytes(const Matmul& o) {
  return !o.transpose_b && o.n % 1024 == 0 && o.m >= 64 ? kFloat * o.k * o.n : 0;
}

// Sums over rows go by at most 64 runs of at least 32 rows.
int64_t PartialSums(int64_t rows) { return std::min<int64_t>(64, (rows + 31) / 32); }

// A double per block of 8192 elements.
int64_t ReductionBytes(int64_t n) { return 8 * (n / 8192 + 1); }

// The moments of chunks of about 16,384 elements, and factors per column.
int64_t BatchNormBytes(int64_t rows, int64_t cols) {
  const int64_t each = std::clamp<int64_t>(16384 / cols, 32, 1024);
  return kFloat * (2 * ((rows + each - 1) / each) + 3) * cols;
}

// Keys, values and a tile of scores, laid out for the vector units, per thread.
int64_t AttentionBytes(int64_t time, int64_t head_dim) {
  return kFloat * kThreads * (time * (4 * head_dim + 32) + 80 * head_dim);
}

// Features, their transpose and their products of one sample, padded, per thread.
int64_t InteractionBytes(int64_t count, int64_t width) {
  const int64_t features = count + 16, padded = width + 15;
  return kFloat * kThreads * features * (2 * padded + features);
}

// Floating-point operations of matrix products, and bytes of scratch.
struct Cost {
  double flops = 0;
  int64_t workspace = 0;
};

struct CostOf {
  const std::vector<Tensor>& tensors;

  // Of fp16 operands products are made of fp32 twins, which lie in the workspace.
  bool Narrow(TensorId id) const { return tensors[id].type == ElementType::kBF16; }
  int64_t Twins(std::initializer_list<TensorId> ids) const {
    int64_t bytes = 0;
    for (const TensorId id : ids) {
      if (tensors[id].type == ElementType::kF16) bytes += kFloat * tensors[id].elements();
    }
    return bytes;
  }

  Cost operator()(const Matmul& o) const {
    const int64_t panel = Narrow(o.a) ? kNarrowPanelBytes : kPanelBytes;
    return {.flops = 2.0 * static_cast<double>(o.m) * static_cast<double>(o.n) *
                     static_cast<double>(o.k),
            .workspace = Twins({o.a, o.b, o.c}) + (Narrow(o.a) ? 0 : PackedBytes(o)) +
                         kThreads * std::min(panel, kFloat * (o.m + o.n) * o.k)};
  }
  // Weights reordered into the blocked layout that the kernel wants; for the gradient by weights a
  // partial sum per thread as well.
  Cost operator()(const ConvolutionForward& o) const {
    return {.flops = ConvolutionFlops(o.shape),
            .workspace = Twins({o.x, o.w, o.y}) + 2 * WeightBytes(o.shape) +
                         (Narrow(o.w) ? 0 : WinogradBytes(o.shape, 1))};
  }
  Cost operator()(const ConvolutionBackwardData& o) const {
    return {.flops = ConvolutionFlops(o.shape),
            .workspace = Twins({o.dy, o.w, o.dx}) + 2 * WeightBytes(o.shape) +
                         (Narrow(o.w) ? 0 : WinogradBytes(o.shape, 1))};
  }
  Cost operator()(const ConvolutionBackwardWeights& o) const {
    const int64_t winograd = Narrow(o.x) ? 0 : WinogradBytes(o.shape, kThreads + 2);
    const int64_t direct =
        InputBytes(o.shape) / o.shape.batch + (kThreads + 2) * WeightBytes(o.shape);
    return {.flops = ConvolutionFlops(o.shape),
            .workspace = Twins({o.x, o.dy}) + (winograd > 0 ? winograd : direct)};
  }
  // q k^T and p v.
  Cost operator()(const AttentionForward& o) const {
    return {.flops = AttentionFlops(2, o.batch, o.time, o.heads, o.head_dim, o.causal),
            .workspace = AttentionBytes(o.time, o.head_dim)};
  }
  // q k^T again, dy v^T, dq, dk and dv.
  Cost operator()(const AttentionBackward& o) const {
    return {.flops = AttentionFlops(5, o.batch, o.time, o.heads, o.head_dim, o.causal),
            .workspace = AttentionBytes(o.time, o.head_dim)};
  }
  // The products above the diagonal; their gradient takes two.
  Cost operator()(const InteractionForward& o) const {
    return {.flops = InteractionFlops(o.batch, o.count, o.width),
            .workspace = InteractionBytes(o.count, o.width)};
  }
  Cost operator()(const InteractionBackward& o) const {
    return {.flops = 2 * InteractionFlops(o.batch, o.count, o.width),
            .workspace = InteractionBytes(o.count, o.width)};
  }

  Cost operator()(const BatchNormBackward& o) const {
    return Scratch(BatchNormBytes(o.rows, o.cols));
  }
  Cost operator()(const BatchNormForward& o) const {
    return Scratch(BatchNormBytes(o.rows, o.cols));
  }
  Cost operator()(const BatchNormInference& o) const { return Scratch(kFloat * o.cols); }
  Cost operator()(const ColumnSum& o) const {
    return Scratch(kFloat * PartialSums(o.rows) * o.cols);
  }
  Cost operator()(const LayerNormBackward& o) const {
    return Scratch(kFloat * 2 * PartialSums(o.rows) * o.cols);
  }
  // A hash table of up to four times the samples per thread.
  Cost operator()(const LambStep& o) const {
    return Scratch(o.adapt ? 2 * ReductionBytes(o.n) : 0);
  }
  Cost operator()(const MergeRows& o) const { return Scratch(kThreads * 4 * o.samples * 4); }
  Cost operator()(const SquaredNorm& o) const { return Scratch(ReductionBytes(o.n)); }
  Cost operator()(const Sum& o) const { return Scratch(ReductionBytes(o.n)); }

  // Neither products nor scratch; listed, so that a new op must be decided upon.
  Cost operator()(const ActivationBackward&) const { return {}; }
  Cost operator()(const ActivationForward&) const { return {}; }
  Cost operator()(const AdamWRows&) const { return {}; }
  Cost operator()(const AdamWStep&) const { return {}; }
  Cost operator()(const Add&) const { return {}; }
  Cost operator()(const AddBias&) const { return {}; }
  Cost operator()(const BinaryCrossEntropy&) const { return {}; }
  Cost operator()(const Cast&) const { return {}; }
  Cost operator()(const ClipScale&) const { return {}; }
  Cost operator()(const Concat&) const { return {}; }
  Cost operator()(const CountTargets&) const { return {}; }
  Cost operator()(const CrossEntropy&) const { return {}; }
  Cost operator()(const DivideByNorm&) const { return {}; }
  Cost operator()(const Dropout&) const { return {}; }
  Cost operator()(const EmaStep&) const { return {}; }
  Cost operator()(const EmbeddingBackward&) const { return {}; }
  Cost operator()(const EmbeddingForward&) const { return {}; }
  Cost operator()(const EmbeddingTablesBackward&) const { return {}; }
  Cost operator()(const EmbeddingTablesForward&) const { return {}; }
  Cost operator()(const KeepRows&) const { return {}; }
  Cost operator()(const LayerNormForward&) const { return {}; }
  Cost operator()(const MaxPoolBackward&) const { return {}; }
  Cost operator()(const MaxPoolForward&) const { return {}; }
  Cost operator()(const MeanPoolBackward&) const { return {}; }
  Cost operator()(const MeanPoolForward&) const { return {}; }
  Cost operator()(const MuonMomentum&) const { return {}; }
  Cost operator()(const MuonStep&) const { return {}; }
  Cost operator()(const NewtonSchulz&) const { return {}; }
  Cost operator()(const Rotary&) const { return {}; }
  Cost operator()(const SgdRows&) const { return {}; }
  Cost operator()(const SgdStep&) const { return {}; }
  Cost operator()(const Split&) const { return {}; }
  Cost operator()(const SwiGluBackward&) const { return {}; }
  Cost operator()(const SwiGluForward&) const { return {}; }
  Cost operator()(const Transpose&) const { return {}; }
  Cost operator()(const Zero&) const { return {}; }

 private:
  static Cost Scratch(int64_t bytes) { return {.workspace = bytes}; }
};

double FlopsOfAll(const Plan& plan, const std::vector<Op>& ops) {
  double flops = 0;
  for (const Op& op : ops) flops += Flops(plan.tensors, op);
  return flops;
}

int64_t LargestWorkspace(const Plan& plan) {
  int64_t largest = 0;  // the stream's scratch is shared by all ops
  for (const auto* ops : {&plan.micro, &plan.norm, &plan.end, &plan.evaluate}) {
    for (const Op& op : *ops) largest = std::max(largest, WorkspaceBytes(plan.tensors, op));
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

constexpr int64_t kIndexBytes = 64;                      // per image: its name and place
constexpr int64_t kPhotographBytes = int64_t{12} << 20;  // 4 million pixels

// What the data room holds in memory: IDX images as bytes with i32 labels, text as 16-bit ids,
// token files and generated clicks nothing, tables of clicks 4 bytes per value; of image files an
// index and, per thread, a photograph while it is decoded.
int64_t DatasetBytes(const v1::Data& data, const DataFacts& facts, int64_t context) {
  const int64_t samples = facts.train_size + facts.validation_size;
  if (data.has_idx()) return samples * (facts.height * facts.width * facts.channels + 4);
  if (data.has_text()) return samples * 2 * (facts.kind == DataFacts::Kind::kTokens ? 1 : context);
  if (data.has_image_folder() || data.has_webdataset()) {
    const int64_t threads = data.has_threads() ? data.threads() : kThreads;
    return samples * kIndexBytes + threads * kPhotographBytes;
  }
  if (data.has_csv() || data.has_criteo()) {
    return samples * (4 * (facts.dense + facts.categorical) + 1);
  }
  return 0;
}

// Batches of the held-out split that are ready or in use while it is evaluated.
constexpr int64_t kHeldOutBatches = 3;

int64_t StagingBytes(const v1::JobSpec& spec, const DataFacts& facts, const Plan& plan) {
  const int64_t checkpoint = plan.parameter_region.bytes + plan.optimizer_region.bytes +
                             plan.ema_region.bytes + plan.buffer_region.bytes;
  const auto bytes = [&](TensorId id) { return id == kNone ? 0 : plan.tensors[id].bytes(); };
  const int64_t batch = bytes(plan.input) + bytes(plan.ids) + bytes(plan.target);
  const int64_t held_out = bytes(plan.eval_input) + bytes(plan.eval_ids) + bytes(plan.eval_target);
  return checkpoint + (spec.data().prefetch() + 1) * batch + kHeldOutBatches * held_out +
         DatasetBytes(spec.data(), facts, ContextOf(spec.model()));
}

// Passes over one micro-batch know activations only, and the sharing of memory is what laid it out.
void SummarizePasses(Plan& plan) {
  const int64_t gradients = plan.gradient_region.bytes;
  v1::PlanSummary& s = plan.summary;
  for (v1::PassSummary& pass : *s.mutable_passes()) {
    pass.set_bytes_before(pass.bytes_before() + gradients);
    pass.set_bytes_after(pass.bytes_after() + gradients);
  }
  if (gradients == 0) return;
  const auto ops = static_cast<int32_t>(plan.micro.size());
  v1::PassSummary& share = *s.add_passes();
  share.set_name("share_gradients");
  share.set_bytes_before(gradients + plan.activation_bytes);
  share.set_bytes_after(gradients + plan.activation_region.bytes);
  share.set_ops_before(ops);
  share.set_ops_after(ops);
}

}  // namespace

double Flops(const std::vector<Tensor>& tensors, const Op& op) {
  return std::visit(CostOf{tensors}, op).flops;
}

double FlopsPerStep(const Plan& plan, int64_t ranks) {
  return FlopsOfAll(plan, plan.micro) * static_cast<double>(plan.micro_batches * ranks) +
         FlopsOfAll(plan, plan.end);
}

int64_t WorkspaceBytes(const std::vector<Tensor>& tensors, const Op& op) {
  return std::visit(CostOf{tensors}, op).workspace;
}

void Summarize(const v1::JobSpec& spec, const DataFacts& facts, int64_t ranks, Plan& plan) {
  v1::PlanSummary& s = plan.summary;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const int64_t elements = plan.tensors[plan.parameters[i]].elements();
    s.set_parameters(s.parameters() + elements);
    if (i >= plan.trained) s.set_frozen_parameters(s.frozen_parameters() + elements);
  }
  // However many ranks there are, together they make the optimizer's step once.
  s.set_flops_per_step(FlopsPerStep(plan, ranks));
  s.set_total_steps(plan.total_steps);
  s.set_parameter_bytes(plan.parameter_region.bytes);
  s.set_weight_copy_bytes(plan.copy_region.bytes);
  s.set_gradient_bytes(plan.gradient_region.bytes);
  s.set_optimizer_bytes(plan.optimizer_region.bytes);
  s.set_buffer_bytes(plan.buffer_region.bytes);
  s.set_ema_bytes(plan.ema_region.bytes);
  s.set_activation_bytes(plan.activation_bytes + plan.scalar_region.bytes);
  s.set_shared_bytes(plan.activation_bytes - plan.activation_region.bytes);
  s.set_workspace_bytes(LargestWorkspace(plan) + RotaryTableBytes(plan));
  s.set_staging_bytes(StagingBytes(spec, facts, plan));
  s.set_process_bytes(kProcessBytes);
  s.set_bytes_per_slot(s.parameter_bytes() + s.weight_copy_bytes() + s.gradient_bytes() +
                       s.optimizer_bytes() + s.ema_bytes() + s.buffer_bytes() +
                       s.activation_bytes() + s.workspace_bytes() + s.staging_bytes() +
                       s.process_bytes() - s.shared_bytes());
  SummarizePasses(plan);
}

}  // namespace trainyard::plan
