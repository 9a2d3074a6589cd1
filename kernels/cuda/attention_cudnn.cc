#include "kernels/cuda/attention_cudnn.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/agreement.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/trial_data.h"

// B batch, T time, H heads of queries, K heads of keys and values, D elements of a head.

namespace trainyard::kernels::cuda {
namespace {

using Tensor = OperationGraph::Tensor;

// The ids of tensors that Plan::Run binds.
enum Id : int64_t { kQ = 1, kK, kV, kY, kLse, kDy, kDq, kDk, kDv, kDelta, kDkHeads, kDvHeads };
enum ScalarId : int64_t { kScale = 101, kHidden, kOne };

constexpr size_t kMostWorkspace = size_t{1} << 30;

// The scalars of a graph, in memory that a plan may read at any time.
struct Scalars {
  float scale = 1;
  // The score of a hidden position: its exponential is 0, and it is never the maximum of a row.
  float hidden = std::numeric_limits<float>::lowest();
  float one = 1;
};

template <typename Op>
int64_t RowOf(const Op& op) {
  return (op.heads + 2 * op.kv_heads) * op.head_dim;
}
template <typename Op>
int64_t QueryHeads(const Op& op) {
  return op.heads / op.kv_heads;
}

// The tensors of one piece. Those as large as the scores, [B, H, T, T], are never in memory.
template <typename Op>
class Scene {
 public:
  Scene(const Op& op, const AttentionPiece& piece)
      : op_(op),
        B(piece.samples),
        T(op.time),
        H(piece.kv_heads * QueryHeads(op)),
        K(piece.kv_heads),
        D(op.head_dim),
        type(CudnnTypeOf(op.qkv.dtype)) {}

  // Rows of the packed projections, [B, heads, T, D], or transposed, [B, heads, D, T].
  Tensor Packed(OperationGraph& graph, Id id, int64_t heads, bool transposed = false) const {
    const int64_t row = RowOf(op_);
    return transposed ? graph.Bound({.id = id,
                                     .dims = {B, heads, D, T},
                                     .strides = {T * row, D, 1, row},
                                     .type = type})
                      : graph.Bound({.id = id,
                                     .dims = {B, heads, T, D},
                                     .strides = {T * row, D, row, 1},
                                     .type = type});
  }
  Tensor Output(OperationGraph& graph, Id id) const {
    const int64_t row = op_.heads * D;
    return graph.Bound(
        {.id = id, .dims = {B, H, T, D}, .strides = {T * row, D, row, 1}, .type = type});
  }
  Tensor Lse(OperationGraph& graph) const {
    return graph.Bound(
        {.id = kLse, .dims = {B, H, T, 1}, .strides = {op_.heads * T, T, 1, 1}, .alignment = 4});
  }
  Tensor Scores(OperationGraph& graph, cudnnDataType_t of = CUDNN_DATA_FLOAT) const {
    return graph.Virtual({B, H, T, T}, of);
  }
  Tensor Column(OperationGraph& graph) const { return graph.Virtual({B, H, T, 1}); }

  // scale * q k^T, with kHidden where a query does not see the key.
  Tensor VisibleScores(OperationGraph& graph, Tensor q, Tensor k, Tensor scale) const {
    const Tensor products = graph.Product(q, k, Scores(graph));
    const Tensor scores = graph.Pointwise(CUDNN_POINTWISE_MUL, products, scale, Scores(graph));
    if (!op_.causal) return scores;
    const Tensor query = graph.Index(scores, 2, Scores(graph, CUDNN_DATA_INT32));
    const Tensor key = graph.Index(scores, 3, Scores(graph, CUDNN_DATA_INT32));
    const Tensor visible =
        graph.Pointwise(CUDNN_POINTWISE_CMP_GE, query, key, Scores(graph, CUDNN_DATA_BOOLEAN));
    return graph.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, graph.Scalar(kHidden),
                           Scores(graph), visible);
  }

  // 16-bit scores with queries and keys exchanged.
  Tensor Transposed(OperationGraph& graph, Tensor scores) const {
    return graph.Reshape(scores, graph.Virtual({B, H, T, T}, type, {H * T * T, T * T, 1, T}));
  }

 private:
  const Op& op_;

 public:
  const int64_t B, T, H, K, D;
  const cudnnDataType_t type;
};

std::shared_ptr<OperationGraph> GraphOf(const AttentionForward& op) {
  const Scene<AttentionForward> scene(op, {.samples = op.batch, .kv_heads = op.kv_heads});
  auto made = std::make_shared<OperationGraph>();
  OperationGraph& graph = *made;
  const Tensor q = scene.Packed(graph, kQ, scene.H);
  const Tensor k = scene.Packed(graph, kK, scene.K, true);
  const Tensor v = scene.Packed(graph, kV, scene.K);
  const Tensor scores = scene.VisibleScores(graph, q, k, graph.Scalar(kScale));
  const Tensor largest = graph.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, scene.Column(graph));
  const Tensor below = graph.Pointwise(CUDNN_POINTWISE_SUB, scores, largest, scene.Scores(graph));
  const Tensor raised = graph.Pointwise(CUDNN_POINTWISE_EXP, below, nullptr, scene.Scores(graph));
  const Tensor total = graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, raised, scene.Column(graph));
  const Tensor log = graph.Pointwise(CUDNN_POINTWISE_LOG, total, nullptr, scene.Column(graph));
  graph.Pointwise(CUDNN_POINTWISE_ADD, largest, log, scene.Lse(graph));
  const Tensor probabilities =
      graph.Pointwise(CUDNN_POINTWISE_DIV, raised, total, scene.Scores(graph, scene.type));
  graph.Product(probabilities, v, scene.Output(graph, kY));
  return made;
}

// The gradient by keys or values, `left` times `right`, added up over the query heads that share a
// head of keys and values.
void GradientByShared(OperationGraph& graph, const Scene<AttentionBackward>& scene, Tensor left,
                      Tensor right, Id id, Id by_head) {
  const Tensor gradient = scene.Packed(graph, id, scene.K);
  if (scene.H == scene.K) {
    graph.Product(left, right, gradient);
    return;
  }
  const Tensor heads =
      graph.Bound({.id = by_head,
                   .dims = {scene.B, scene.H, scene.T, scene.D},
                   .strides = {scene.T * scene.H * scene.D, scene.D, scene.H * scene.D, 1},
                   .type = scene.type});
  graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, graph.Product(left, right, heads), gradient);
}

// P = exp(scores - lse), dS = P * (dy v^T - delta) * scale with delta = sum of dy * y;
// dV = P^T dy, dK = dS^T q, dQ = dS k (Dao et al. 2022, appendix B).
std::shared_ptr<OperationGraph> GraphOf(const AttentionBackward& op, const AttentionPiece& piece) {
  const Scene<AttentionBackward> scene(op, piece);
  auto made = std::make_shared<OperationGraph>();
  OperationGraph& graph = *made;
  const Tensor q = scene.Packed(graph, kQ, scene.H);
  const Tensor k = scene.Packed(graph, kK, scene.K, true);
  const Tensor v = scene.Packed(graph, kV, scene.K, true);
  const Tensor y = scene.Output(graph, kY);
  const Tensor dy = scene.Output(graph, kDy);

  const Tensor parts = graph.Pointwise(CUDNN_POINTWISE_MUL, dy, y,
                                       graph.Virtual({scene.B, scene.H, scene.T, scene.D}));
  const Tensor sums = graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, parts, scene.Column(graph));
  const Tensor delta =
      graph.Pointwise(CUDNN_POINTWISE_MUL, sums, graph.Scalar(kOne),
                      graph.Bound({.id = kDelta,
                                   .dims = {scene.B, scene.H, scene.T, 1},
                                   .strides = {scene.H * scene.T, scene.T, 1, 1}}));

  const Tensor scale = graph.Scalar(kScale);
  const Tensor scores = scene.VisibleScores(graph, q, k, scale);
  const Tensor below =
      graph.Pointwise(CUDNN_POINTWISE_SUB, scores, scene.Lse(graph), scene.Scores(graph));
  const Tensor probabilities =
      graph.Pointwise(CUDNN_POINTWISE_EXP, below, nullptr, scene.Scores(graph));
  GradientByShared(graph, scene, scene.Transposed(graph, probabilities), dy, kDv, kDvHeads);

  const Tensor products = graph.Product(dy, v, scene.Scores(graph));
  const Tensor centred = graph.Pointwise(CUDNN_POINTWISE_SUB, products, delta, scene.Scores(graph));
  const Tensor weighted =
      graph.Pointwise(CUDNN_POINTWISE_MUL, centred, probabilities, scene.Scores(graph));
  const Tensor scaled =
      graph.Pointwise(CUDNN_POINTWISE_MUL, weighted, scale, scene.Scores(graph, scene.type));
  GradientByShared(graph, scene, scene.Transposed(graph, scaled), q, kDk, kDkHeads);

  const int64_t row = RowOf(op);
  const Tensor k_rows =
      graph.Reshape(k, graph.Virtual({scene.B, scene.K, scene.T, scene.D}, scene.type,
                                     {scene.T * row, scene.D, row, 1}));
  graph.Product(scaled, k_rows, scene.Packed(graph, kDq, scene.H));
  return made;
}

absl::StatusOr<std::vector<std::unique_ptr<Plan>>> FirstPlan(
    const PlanTarget& target, const std::shared_ptr<OperationGraph>& graph) {
  const absl::Status finished = graph->Finish(target);
  if (!finished.ok()) return finished;
  return PlansOf(target, graph, {.most_workspace_bytes = kMostWorkspace});
}

bool Aligned(const Buffer& buffer) { return AlignmentOf(buffer.data) == kMostAlignment; }

template <typename Op>
bool Fits(const Op& op) {
  const DType type = op.qkv.dtype;
  return (type == DType::kBF16 || type == DType::kF16) && !op.lengths && op.head_dim % 8 == 0 &&
         Aligned(op.qkv) && Aligned(op.y);
}

template <typename Op>
std::string NameOf(const char* direction, const Op& op, const AttentionPiece& piece) {
  return absl::StrCat("attention-", direction, "-", CudnnTypeOf(op.qkv.dtype), "-", piece.samples,
                      "x", op.time, "x", op.head_dim, "-", op.heads, ".", op.kv_heads, ".",
                      piece.kv_heads, op.causal ? "-causal" : "");
}

size_t Rounded(size_t bytes) {
  return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

// Enqueues the whole op by cuDNN's plan.
using ByPlan = std::function<cudnnStatus_t(Stream&)>;

// cuDNN's plan and our own kernel: a launch runs one of them.
struct Pair {
  Cudnn& dnn;
  Kernel own;
  std::string name;
  bool causal = true;
  Scalars scalars = {};
  std::shared_ptr<PlanSet> set = {};

  cudnnStatus_t Run(Stream& stream, std::vector<Plan::Binding> bindings, void* workspace) {
    bindings.push_back({kScale, &scalars.scale});
    if (causal) bindings.push_back({kHidden, &scalars.hidden});
    const cudnnStatus_t error = dnn.Use(CudaStream::From(stream).handle());
    if (error != CUDNN_STATUS_SUCCESS) return error;
    return set->plans[0]->Run(dnn.handle(), bindings, workspace);
  }

  // A plan that was never tried before may fail to start here: our own kernel runs from then on. If
  // it was settled, the failure is a fault of the device.
  void Launch(Stream& stream, const ByPlan& by_plan) const {
    if (set->distrusted) return own.launch(stream);
    const cudnnStatus_t error = by_plan(stream);
    if (error == CUDNN_STATUS_SUCCESS) return;
    if (set->settled) {
      CudaStream::From(stream).fault().Note(ToStatus(error, "attention"));
      return;
    }
    Distrust(cudnnGetErrorString(error));
    own.launch(stream);
  }

  void Distrust(const std::string& why) const {
    set->distrusted = true;
    std::fprintf(stderr, "%s: our own kernel is taken instead of cuDNN's: %s\n", name.c_str(),
                 why.c_str());
  }

  // Runs both on the same numbers, which `fill` writes, and compares the results. A plan that the
  // library does not start is no fault of the device: our own kernel runs instead.
  void Check(Stream& stream, const std::vector<Computed>& results,
             const std::function<void()>& fill, const ByPlan& by_plan) {
    if (set->settled || set->distrusted) return;
    fill();
    own.launch(stream);
    const auto ours = Read(stream, results);
    const cudnnStatus_t error = by_plan(stream);
    if (error != CUDNN_STATUS_SUCCESS) return Distrust(cudnnGetErrorString(error));
    const double apart = Distance(Read(stream, results), ours);
    // Twice the error of rounding probabilities and gradients of scores to bf16.
    if (!(apart < 0.02)) return Distrust(absl::StrCat("they are ", apart, " apart"));
    dnn.Settle(name, *set);
  }
};

// Makes kUnimplemented of any failure to make a plan, since our own kernel can run instead.
// Failures other than a shape that the library does not support are told on standard error.
absl::Status NoPlan(const std::string& name, const absl::Status& why) {
  if (!absl::IsUnimplemented(why)) {
    std::fprintf(stderr, "%s: our own kernel is taken, since cuDNN made no plan: %s\n",
                 name.c_str(), std::string(why.message()).c_str());
  }
  return absl::UnimplementedError(why.message());
}

}  // namespace

bool FitsCudnn(const AttentionForward& op) { return Fits(op); }
bool FitsCudnn(const AttentionBackward& op) {
  return Fits(op) && Aligned(op.dy) && Aligned(op.dqkv);
}

AttentionPiece PieceOf(const AttentionBackward& op, size_t bytes) {
  const int64_t head = op.time * op.time * 2 * QueryHeads(op);  // bytes, of one head of keys
  const auto largest = [&](int64_t of, int64_t one) {
    int64_t most = std::clamp<int64_t>(static_cast<int64_t>(bytes) / one, 1, of);
    while (of % most != 0) --most;
    return most;
  };
  const int64_t kv_heads = largest(op.kv_heads, head);
  return {.samples = kv_heads == op.kv_heads ? largest(op.batch, head * op.kv_heads) : 1,
          .kv_heads = kv_heads};
}

absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(const PlanTarget& target,
                                                           const AttentionForward& op) {
  return FirstPlan(target, GraphOf(op));
}

absl::StatusOr<std::vector<std::unique_ptr<Plan>>> PlansOf(const PlanTarget& target,
                                                           const AttentionBackward& op,
                                                           const AttentionPiece& piece) {
  return FirstPlan(target, GraphOf(op, piece));
}

absl::StatusOr<Kernel> PrepareCudnn(Cudnn& dnn, const AttentionForward& op, Kernel own) {
  const AttentionPiece whole = {.samples = op.batch, .kv_heads = op.kv_heads};
  const auto pair = std::make_shared<Pair>(
      Pair{.dnn = dnn, .own = std::move(own), .name = NameOf("forward", op, whole)});
  absl::StatusOr<std::shared_ptr<PlanSet>> set =
      dnn.Plans(pair->name, [&](const PlanTarget& target) { return PlansOf(target, op); });
  if (!set.ok()) return NoPlan(pair->name, set.status());
  pair->set = *std::move(set);
  pair->scalars.scale = op.scale;
  pair->causal = op.causal;
  const auto by_plan = [op, pair = pair.get()](Stream& stream) {
    const int64_t keys = op.heads * op.head_dim, values = keys + op.kv_heads * op.head_dim;
    return pair->Run(stream,
                     {{kQ, op.qkv.data},
                      {kK, op.qkv.From(keys).data},
                      {kV, op.qkv.From(values).data},
                      {kY, op.y.data},
                      {kLse, op.lse.data}},
                     AlignWorkspace(stream.scratch));
  };
  const int64_t rows = op.batch * op.time;
  const auto check = [=](Stream& stream) {
    const auto fill = [&] { LaunchTrialData(stream, op.qkv, rows * RowOf(op), 1.0f); };
    pair->Check(stream, {{op.y, rows * op.heads * op.head_dim}, {op.lse, rows * op.heads}}, fill,
                by_plan);
  };
  return Kernel{.launch = [pair, by_plan](Stream& stream) { pair->Launch(stream, by_plan); },
                .scratch_bytes =
                    std::max(pair->own.scratch_bytes, kWorkspaceAlign + pair->set->workspace_bytes),
                .tune = check};
}

absl::StatusOr<Kernel> PrepareCudnn(Cudnn& dnn, const AttentionBackward& op, Kernel own,
                                    size_t score_bytes) {
  const AttentionPiece piece = PieceOf(op, score_bytes);
  const auto pair = std::make_shared<Pair>(
      Pair{.dnn = dnn, .own = std::move(own), .name = NameOf("backward", op, piece)});
  absl::StatusOr<std::shared_ptr<PlanSet>> set =
      dnn.Plans(pair->name, [&](const PlanTarget& target) { return PlansOf(target, op, piece); });
  if (!set.ok()) return NoPlan(pair->name, set.status());
  pair->set = *std::move(set);
  pair->scalars.scale = op.scale;
  pair->causal = op.causal;
  const int64_t group = QueryHeads(op), piece_heads = piece.kv_heads * group;
  const int64_t piece_rows = piece.samples * op.time * piece_heads;
  const size_t delta_bytes = Rounded(static_cast<size_t>(piece_rows) * sizeof(float));
  const size_t head_bytes =
      group == 1 ? 0
                 : Rounded(static_cast<size_t>(piece_rows * op.head_dim) * SizeOf(op.qkv.dtype));
  const auto by_plan = [=, pair = pair.get()](Stream& stream) {
    char* const delta = static_cast<char*>(AlignWorkspace(stream.scratch));
    char* const dk_heads = delta + delta_bytes;
    char* const dv_heads = dk_heads + head_bytes;
    char* const workspace = dv_heads + head_bytes;
    for (int64_t b = 0; b < op.batch; b += piece.samples) {
      for (int64_t kv = 0; kv < op.kv_heads; kv += piece.kv_heads) {
        const int64_t first = b * op.time * RowOf(op);
        const int64_t q = first + kv * group * op.head_dim;
        const int64_t k = first + (op.heads + kv) * op.head_dim;
        const int64_t v = k + op.kv_heads * op.head_dim;
        const int64_t y = (b * op.time * op.heads + kv * group) * op.head_dim;
        const int64_t lse = (b * op.heads + kv * group) * op.time;
        std::vector<Plan::Binding> bindings = {
            {kQ, op.qkv.From(q).data},   {kK, op.qkv.From(k).data},
            {kV, op.qkv.From(v).data},   {kY, op.y.From(y).data},
            {kDy, op.dy.From(y).data},   {kLse, op.lse.From(lse).data},
            {kDq, op.dqkv.From(q).data}, {kDk, op.dqkv.From(k).data},
            {kDv, op.dqkv.From(v).data}, {kDelta, delta},
            {kOne, &pair->scalars.one}};
        if (group > 1) {
          bindings.push_back({kDkHeads, dk_heads});
          bindings.push_back({kDvHeads, dv_heads});
        }
        const cudnnStatus_t error = pair->Run(stream, std::move(bindings), workspace);
        if (error != CUDNN_STATUS_SUCCESS) return error;
      }
    }
    return CUDNN_STATUS_SUCCESS;
  };
  const int64_t rows = op.batch * op.time;
  const auto check = [=](Stream& stream) {
    const auto fill = [&] {
      LaunchTrialData(stream, op.qkv, rows * RowOf(op), 1.0f);
      LaunchTrialData(stream, op.y, rows * op.heads * op.head_dim, 1.0f);
      LaunchTrialData(stream, op.dy, rows * op.heads * op.head_dim, 1.0f);
      LaunchTrialData(stream, op.lse, rows * op.heads, 1.0f);
    };
    pair->Check(stream, {{op.dqkv, rows * RowOf(op)}}, fill, by_plan);
  };
  return Kernel{.launch = [pair, by_plan](Stream& stream) { pair->Launch(stream, by_plan); },
                .scratch_bytes = std::max(
                    pair->own.scratch_bytes,
                    kWorkspaceAlign + delta_bytes + 2 * head_bytes + pair->set->workspace_bytes),
                .tune = check};
}

}  // namespace trainyard::kernels::cuda
