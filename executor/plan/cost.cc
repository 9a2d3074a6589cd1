#include "executor/plan/cost.h"

#include <algorithm>
#include <bit>
#include <set>
#include <tuple>
#include <variant>

#include "executor/plan/convolution_cost.h"
#include "executor/plan/gpu_scratch.h"
#include "executor/plan/memory.h"
#include "executor/plan/scratch.h"
#include "executor/plan/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// A worker without any tensor: code, oneDNN and protobuf, thread stacks, and the kernels that
// oneDNN compiled. Peak resident memory less all the rest of this plan, on 2 CPU threads: mlp 20
// MiB, character GPT 20, convnet 23.
constexpr int64_t kProcessBytes = int64_t{24} << 20;

// `products`: how many [time, time, head_dim] products an attention makes per head.
double AttentionFlops(double products, int64_t batch, int64_t time, int64_t heads, int64_t head_dim,
                      bool causal) {
  return products * 2.0 * static_cast<double>(batch * heads * head_dim) *
         static_cast<double>(time) * static_cast<double>(time) * (causal ? 0.5 : 1.0);
}

double InteractionFlops(int64_t batch, int64_t count, int64_t width) {
  return static_cast<double>(batch * width) * static_cast<double>(count * (count + 1));
}

// Copies of blocks of the operands, per thread; `least` bytes of them in bf16, with tiles and fp32
// sums beside. A sum that is long for a result with few columns is cut: a result per thread.
int64_t PanelBytes(const Matmul& o, int64_t least) {
  constexpr int64_t kEdges = 1 << 10;
  const int64_t most = std::max<int64_t>(least, (o.transpose_a ? 1600 : 544) << 10);
  const int64_t all = kFloat * (RoundUp(o.m, 16) + RoundUp(o.n, 64)) * RoundUp(o.k, 16);
  const bool cut = o.transpose_a && o.k > 1024 && Ceil(o.n, 64) < kThreads;
  return kThreads * (std::min(most, all + kEdges) + (cut ? kFloat * o.m * o.n : 0));
}

// Operands that are packed first: b, where its rows lie a multiple of 4 KiB apart, and where the
// product goes by tiles (kernels/cpu/matmul.cc) b, and a stored transposed, that are not large and
// whose rows lie a multiple of 1 KiB apart, with a line of the cache between them.
int64_t PackedBytes(const Matmul& o) {
  constexpr int64_t kLine = 16, kSet = 256, kLarge = 16 * kMiB;
  if (o.m < 64 || o.n < 64) return 0;
  const auto packed = [&](int64_t columns) {
    const int64_t bytes = kFloat * o.k * (columns + kLine);
    return bytes <= kLarge ? bytes : 0;
  };
  const int64_t a = o.transpose_a && (o.m % kSet == 0 || o.a_cols > 0) ? packed(o.m) : 0;
  const int64_t b = !o.transpose_b && o.n % kSet == 0 ? packed(o.n) : 0;
  const int64_t whole_b = !o.transpose_b && o.n % 1024 == 0 ? kFloat * o.k * o.n : 0;
  return std::max(a + b, whole_b);
}

// Twins of operands, which oneDNN sees in their place: those of more than kTwinBytes are made by
// pieces of some rows or columns of c, and that of the operand that all pieces read once
// (kernels/cpu/matmul.cc).
constexpr int64_t kTwinBytes = 64 * kMiB;
constexpr int64_t kPieceGrain = 64;

// Bytes of an element of the twins of a, b and c; 0: there is none.
struct TwinSizes {
  int64_t a = 0, b = 0, c = 0;
};

// Twins, and what a product in fp32 takes beside.
int64_t TwinProductBytes(const Matmul& o, const TwinSizes& twin) {
  const auto product = [](const Matmul& p) { return PackedBytes(p) + PanelBytes(p, 0); };
  const int64_t a = twin.a * o.m * o.k, b = twin.b * o.k * o.n, c = twin.c * o.m * o.n;
  if (a + b + c <= kTwinBytes) return a + b + c + product(o);
  const bool by_rows = b <= a;
  const int64_t each = by_rows ? twin.a * o.k + twin.c * o.n : twin.b * o.k + twin.c * o.m;
  const int64_t all = by_rows ? o.m : o.n;
  const int64_t piece =
      std::min(all, std::max(kPieceGrain, kTwinBytes / each / kPieceGrain * kPieceGrain));
  int64_t most = 0;
  for (const int64_t size : {piece, all % piece}) {
    if (size == 0) continue;
    Matmul p = o;
    (by_rows ? p.m : p.n) = size;
    most = std::max(most, each * size + product(p));
  }
  return (by_rows ? b : a) + most;
}

// Sums over rows go by at most 64 runs of at least 32 rows.
int64_t PartialSums(int64_t rows) { return Ceil(rows, std::max<int64_t>(32, Ceil(rows, 64))); }

// A double per block of 8192 elements.
int64_t ReductionBytes(int64_t n) { return 8 * Ceil(n, 8192); }

// The moments of chunks of about 16,384 elements, and `factors` per column.
int64_t BatchNormBytes(int64_t rows, int64_t cols, int64_t factors) {
  const int64_t each = std::clamp<int64_t>(16384 / cols, 32, 1024);
  return kFloat * (2 * Ceil(rows, each) + factors) * cols;
}

// Keys, values and a tile of scores, laid out for the vector units, per thread.
int64_t AttentionBytes(int64_t time, int64_t head_dim) {
  const int64_t padded = RoundUp(head_dim, 16);
  return kFloat * kThreads * (time * (4 * padded + 32) + 80 * padded);
}

// Features, their transpose and their products of one sample, padded, per thread.
int64_t InteractionBytes(int64_t count, int64_t width) {
  const int64_t features = count + 1, padded = RoundUp(features, 16);
  return kFloat * kThreads * (RoundUp(width, 16) * (features + padded) + features * padded);
}

// Floating-point operations of matrix products, and bytes of scratch.
struct Cost {
  double flops = 0;
  int64_t workspace = 0;
};

struct CostOf {
  const std::vector<Tensor>& tensors;

  // Products of type `id` that need `twins` bytes by fp32 twins of their operands, as fp16 always
  // does and bf16 where the CPU has no instructions for it, and `narrow` in bf16 where it has.
  // Nobody knows yet which machine it will be: it must hold either.
  int64_t OnAnyCpu(TensorId id, int64_t twins, int64_t narrow) const {
    return tensors[id].type == ElementType::kBF16 ? std::max(twins, narrow) : twins;
  }

  // Convolutions of `operands`, the first of which says their type, that need `wide` bytes beside
  // the twins.
  int64_t Products(std::initializer_list<TensorId> operands, int64_t wide, int64_t narrow) const {
    for (const TensorId id : operands) {
      if (tensors[id].type != ElementType::kF32) wide += kFloat * tensors[id].elements();
    }
    return OnAnyCpu(*operands.begin(), wide, narrow);
  }

  // Products of types that the CPU has no instructions for are of twins in fp32; those by bf16
  // instructions, and in fp32 with AVX-512, of dense twins of what lies apart.
  int64_t ProductBytes(const Matmul& o, TensorId a, bool a_apart, TensorId c, bool c_apart) const {
    if (tensors[a].type == ElementType::kF32) {
      const int64_t dense = (a_apart ? o.m * o.k : 0) + (c_apart ? o.m * o.n : 0);
      return kFloat * dense + PackedBytes(o) + PanelBytes(o, 0);
    }
    const bool narrow_c = tensors[c].type != ElementType::kF32;
    const int64_t wide = TwinProductBytes(o, {kFloat, kFloat, narrow_c ? kFloat : 0});
    const int64_t dense =
        (a_apart ? 2 * o.m * o.k : 0) + (c_apart ? (narrow_c ? 2 : kFloat) * o.m * o.n : 0);
    return OnAnyCpu(a, wide, dense + PanelBytes(o, o.k > 2048 ? 4 * kMiB : kMiB));
  }

  bool Apart(TensorId id) const { return tensors[id].row_stride > 0; }

  Cost operator()(const Matmul& o) const {
    return {.flops = 2.0 * static_cast<double>(o.m) * static_cast<double>(o.n) *
                     static_cast<double>(o.k),
            .workspace = ProductBytes(o, o.a, o.a_cols > 0 || Apart(o.a), o.c, Apart(o.c))};
  }
  Cost operator()(const AddProduct& o) const {
    const Matmul product = {.m = o.rows, .n = o.n, .k = o.k, .transpose_b = true};
    return {.flops = 2.0 * static_cast<double>(o.rows) * static_cast<double>(o.n) *
                     static_cast<double>(o.k),
            .workspace = ProductBytes(product, o.a, false, o.y, o.n != o.cols)};
  }
  // Our own convolutions read any type in place; where the CPU has bf16, oneDNN's take their place.
  int64_t Own(TensorId x, int64_t own, int64_t narrow) const {
    return tensors[x].type == ElementType::kBF16 ? std::max(own, narrow) : own;
  }

  Cost operator()(const ConvolutionForward& o) const {
    const int64_t direct = DirectBytes(o.shape, true), narrow = TileForwardBytes(o.shape);
    return {.flops = ConvolutionFlops(o.shape),
            .workspace = SuitsWinograd(o.shape) ? Own(o.x, WinogradBytes(o.shape), narrow)
                                                : Products({o.x, o.w, o.y}, direct, narrow)};
  }
  Cost operator()(const ConvolutionBackwardData& o) const {
    const int64_t direct = DirectBytes(o.shape, false),
                  narrow = std::max(NarrowDataBytes(o.shape), TileDataBytes(o.shape));
    return {.flops = ConvolutionFlops(o.shape),
            .workspace = SuitsWinograd(o.shape) ? Own(o.dy, WinogradBytes(o.shape), narrow)
                                                : Products({o.dy, o.w, o.dx}, direct, narrow)};
  }
  Cost operator()(const ConvolutionBackwardWeights& o) const {
    const int64_t direct = DirectSumBytes(o.shape);
    const int64_t rows = o.shape.batch * o.shape.out_height() * o.shape.out_width();
    const int64_t bias = o.dbias == kNone ? 0 : kFloat * PartialSums(rows) * o.shape.out;
    // oneDNN's bf16 copies both operands, transposed; with tiles an image of them at a time.
    const int64_t narrow = Products({o.x, o.dy}, direct, TileSumBytes(o.shape));
    const auto own = [&](int64_t bytes) { return Own(o.x, std::max(bytes, bias), narrow); };
    return {.flops = ConvolutionFlops(o.shape),
            .workspace = SuitsWinograd(o.shape)         ? own(WinogradGradientBytes(o.shape))
                         : SuitsWeightGradient(o.shape) ? own(WeightGradientBytes(o.shape))
                                                        : narrow};
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
    return Scratch(BatchNormBytes(o.rows, o.cols, 3));
  }
  Cost operator()(const BatchNormForward& o) const {
    return Scratch(BatchNormBytes(o.rows, o.cols, 1));
  }
  Cost operator()(const BatchNormInference& o) const { return Scratch(kFloat * o.cols); }
  Cost operator()(const ColumnSum& o) const {
    return Scratch(kFloat * PartialSums(o.rows) * o.cols);
  }
  Cost operator()(const LayerNormBackward& o) const {
    return Scratch(kFloat * 2 * PartialSums(o.rows) * o.cols);
  }
  Cost operator()(const LambStep& o) const {
    return Scratch(o.adapt ? 2 * ReductionBytes(o.n) : 0);
  }
  // A hash table of two to four slots per sample and thread.
  Cost operator()(const MergeRows& o) const {
    const auto slots = std::bit_ceil(2 * static_cast<uint64_t>(o.samples));
    return Scratch(kThreads * 4 * static_cast<int64_t>(slots));
  }
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
  Cost operator()(const CopyIfTaken&) const { return {}; }
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
  Cost operator()(const NormalizeImages&) const { return {}; }
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

// By `bytes`, WorkspaceBytes or GpuScratchBytes.
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

constexpr int64_t kIndexBytes = 64;                      // per image: its name and place
constexpr int64_t kPhotographBytes = int64_t{12} << 20;  // 4 million pixels

// What the data room holds in memory: IDX images as bytes with i32 labels, text as ids of 16 bits
// (32 where the vocabulary is larger), token files and generated clicks nothing, tables of clicks 4
// bytes per value; of image files an index and, per thread, a photograph while it is decoded.
int64_t DatasetBytes(const v1::Data& data, const DataFacts& facts, int64_t context) {
  const int64_t samples = facts.train_size + facts.validation_size;
  if (data.has_idx()) return samples * (facts.height * facts.width * facts.channels + 4);
  if (data.has_text()) {
    const int64_t id_bytes = facts.vocab > 65536 ? 4 : 2;
    return samples * id_bytes * (facts.kind == DataFacts::Kind::kTokens ? 1 : context);
  }
  if (data.has_image_folder() || data.has_webdataset()) {
    const int64_t threads = data.has_threads() ? data.threads() : kThreads;
    return samples * kIndexBytes + threads * kPhotographBytes;
  }
  if (data.has_csv() || data.has_criteo()) {
    return samples * (4 * (facts.dense + facts.categorical) + 1);
  }
  return 0;
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
  return plan.parameter_region.bytes + plan.optimizer_region.bytes + plan.ema_region.bytes +
         plan.buffer_region.bytes;
}

int64_t StagingBytes(const v1::JobSpec& spec, const DataFacts& facts, const Plan& plan) {
  const auto bytes = [&](TensorId id) { return id == kNone ? 0 : plan.tensors[id].bytes(); };
  const int64_t batch = bytes(plan.input) + bytes(plan.ids) + bytes(plan.target);
  const int64_t held_out = bytes(plan.eval_input) + bytes(plan.eval_ids) + bytes(plan.eval_target);
  const bool gpu = OnGpuAlone(spec);
  const int64_t in_use = gpu ? 2 : 1;  // executor/engine/upload_queue.h: BatchesInUse
  return SnapshotBytes(spec.checkpoint(), gpu, plan) + (spec.data().prefetch() + in_use) * batch +
         (kHeldOutBatches - 1 + in_use) * held_out +
         DatasetBytes(spec.data(), facts, ContextOf(spec.model())) + facts.unsized_bytes +
         ScoreBytes(spec, facts);
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
  share.set_bytes_before(gradients + plan.activation_bytes + plan.step_copy_bytes);
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

int64_t WorkspaceLimit(const Plan& plan, int threads) {
  return plan.summary.workspace_bytes() * std::max<int64_t>(1, Ceil(threads, kThreads));
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
  s.set_weight_copy_bytes(plan.copy_region.bytes + plan.step_copy_bytes);
  s.set_gradient_bytes(plan.gradient_region.bytes);
  s.set_optimizer_bytes(plan.optimizer_region.bytes);
  s.set_buffer_bytes(plan.buffer_region.bytes + plan.pending_region.bytes);
  s.set_ema_bytes(plan.ema_region.bytes);
  s.set_activation_bytes(plan.activation_bytes + plan.scalar_region.bytes);
  s.set_shared_bytes(plan.activation_bytes + plan.step_copy_bytes - plan.activation_region.bytes);
  s.set_staging_bytes(StagingBytes(spec, facts, plan));
  const bool gpu = OnGpuAlone(spec);
  if (gpu) {
    s.set_device(v1::Resources::CUDA);
    s.set_workspace_bytes(LargestWorkspace(plan, GpuScratchBytes));
    s.set_inbox_bytes(UploadQueueBytes(plan));
    s.set_process_bytes(kGpuProcessBytes);
  } else {
    s.set_device(v1::Resources::CPU);
    s.set_workspace_bytes(LargestWorkspace(plan, WorkspaceBytes) + RotaryTableBytes(plan));
    s.set_process_bytes(kProcessBytes);
  }
  s.set_bytes_per_slot(s.parameter_bytes() + s.weight_copy_bytes() + s.gradient_bytes() +
                       s.optimizer_bytes() + s.ema_bytes() + s.buffer_bytes() +
                       s.activation_bytes() + s.workspace_bytes() + s.inbox_bytes() +
                       (gpu ? 0 : s.staging_bytes()) + s.process_bytes() - s.shared_bytes());
  SummarizePasses(plan);
}

}  // namespace trainyard::plan
