#include "executor/plan/graph/graph_builder.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// No machine has it; products of sizes below it fit 64 bits with room to spare.
constexpr int64_t kLargestTensorBytes = int64_t{1} << 46;

bool TooLarge(const Tensor& tensor) {
  double bytes = static_cast<double>(SizeOf(tensor.type));
  for (const int64_t dim : tensor.dims) bytes *= static_cast<double>(dim);
  return bytes > static_cast<double>(kLargestTensorBytes);
}

}  // namespace

GraphBuilder::GraphBuilder(Graph& graph, int64_t batch, bool training, TensorId state,
                           int64_t tensor, bool uses_apart)
    : graph_(graph),
      batch_(batch),
      training_(training),
      state_(state),
      shards_(tensor),
      uses_apart_(uses_apart) {
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    if (tensor.kind == TensorKind::kParameter || tensor.kind == TensorKind::kBuffer) {
      by_name_[tensor.name] = static_cast<TensorId>(i);
    }
  }
}

TensorId GraphBuilder::New(Tensor tensor) {
  if (TooLarge(tensor)) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("spec.model: the tensor ", tensor.name,
                                                        " [", absl::StrJoin(tensor.dims, ", "),
                                                        "] is larger than any machine's memory"));
    }
    tensor.dims.assign(tensor.dims.size(), 1);  // the graph is thrown away; keep its sums finite
  }
  return graph_.Add(std::move(tensor));
}

TensorId GraphBuilder::Input(const std::string& name, ElementType type, std::vector<int64_t> dims) {
  return New({.name = name, .type = type, .dims = std::move(dims), .kind = TensorKind::kInput});
}

TensorId GraphBuilder::Activation(const std::string& name, std::vector<int64_t> dims,
                                  ElementType type) {
  return New(
      {.name = name, .type = type, .dims = std::move(dims), .kind = TensorKind::kActivation});
}

TensorId GraphBuilder::Find(Tensor tensor) {
  const auto found = by_name_.find(tensor.name);
  if (found != by_name_.end()) return found->second;
  const std::string name = tensor.name;
  return by_name_[name] = New(std::move(tensor));
}

TensorId GraphBuilder::Parameter(const std::string& name, std::vector<int64_t> dims, double std,
                                 double value) {
  return Find({.name = name,
               .dims = std::move(dims),
               .kind = TensorKind::kParameter,
               .init_std = std,
               .init_value = value});
}

TensorId GraphBuilder::Buffer(const std::string& name, std::vector<int64_t> dims, double value) {
  return Find(
      {.name = name, .dims = std::move(dims), .kind = TensorKind::kBuffer, .init_value = value});
}

TensorId GraphBuilder::Linear(const std::string& name, TensorId x, int64_t rows, int64_t in,
                              int64_t out, const LinearOptions& options) {
  const bool out_in = options.layout == WeightLayout::kOutIn;
  const TensorId w = Parameter(
      absl::StrCat(name, ".weight"),
      out_in ? std::vector<int64_t>{out, in} : std::vector<int64_t>{in, out}, options.std);
  const TensorId bias = options.bias ? Parameter(absl::StrCat(name, ".bias"), {out}, 0) : kNone;
  const TensorId y = Activation(name, {rows, out});
  graph_.ops.push_back(Matmul{
      .a = x, .b = w, .bias = bias, .c = y, .m = rows, .n = out, .k = in, .transpose_b = out_in});
  return y;
}

TensorId GraphBuilder::LinearSideBySide(const std::string& name, TensorId x, int64_t rows,
                                        int64_t in, const std::vector<LinearPart>& parts,
                                        double std, bool biased) {
  std::vector<Part> weights, biases;
  int64_t out = 0;
  for (const LinearPart& part : parts) {
    weights.push_back({absl::StrCat(part.name, ".weight"), part.out});
    biases.push_back({absl::StrCat(part.name, ".bias"), part.out});
    out += part.out;
  }
  const TensorId w = Parameter(absl::StrCat(name, ".weight"), {out, in}, std);
  graph_.tensors[w].parts = std::move(weights);
  const TensorId bias = biased ? Parameter(absl::StrCat(name, ".bias"), {out}, 0) : kNone;
  if (biased) graph_.tensors[bias].parts = std::move(biases);
  return Project(name, x, w, rows, in, out, bias);
}

TensorId GraphBuilder::Project(const std::string& name, TensorId x, TensorId w, int64_t rows,
                               int64_t in, int64_t out, TensorId bias) {
  const TensorId y = Activation(name, {rows, out});
  graph_.ops.push_back(Matmul{
      .a = x, .b = w, .bias = bias, .c = y, .m = rows, .n = out, .k = in, .transpose_b = true});
  return y;
}

void GraphBuilder::View(TensorId id, std::vector<int64_t> dims) {
  const int64_t elements = graph_[id].elements();
  graph_.tensors[id].dims = std::move(dims);
  TY_CHECK(graph_[id].elements() == elements, graph_[id].name, " has ", elements, " elements");
}

TensorId GraphBuilder::Activate(const std::string& name, TensorId x, ActivationKind kind) {
  const TensorId y = Activation(name, graph_[x].dims);
  graph_.ops.push_back(ActivationForward{.kind = kind, .x = x, .y = y, .n = graph_[x].elements()});
  return y;
}

TensorId GraphBuilder::Sum(const std::string& name, TensorId a, TensorId b) {
  const TensorId y = Activation(name, graph_[a].dims);
  graph_.ops.push_back(Add{.a = a, .b = b, .y = y, .n = graph_[a].elements()});
  return y;
}

TensorId GraphBuilder::AddBias(const std::string& name, TensorId x, TensorId bias, int64_t cols) {
  const TensorId y = Activation(name, graph_[x].dims);
  const int64_t rows = graph_[x].elements() / cols;
  graph_.ops.push_back(
      trainyard::plan::AddBias{.x = x, .bias = bias, .y = y, .rows = rows, .cols = cols});
  return y;
}

TensorId GraphBuilder::Concat(const std::string& name, TensorId a, int64_t a_cols, TensorId b,
                              int64_t b_cols) {
  const int64_t rows = graph_[b].elements() / b_cols;
  const TensorId y = Activation(name, {rows, a_cols + b_cols});
  graph_.ops.push_back(
      trainyard::plan::Concat{.a = a,
                              .b = b,
                              .y = y,
                              .rows = rows,
                              .a_cols = a_cols,
                              .b_cols = b_cols,
                              .repeat_a = graph_[a].kind == TensorKind::kParameter});
  return y;
}

TensorId GraphBuilder::First(const std::string& name, TensorId x, int64_t width) {
  const int64_t rest = graph_[x].elements() / batch_ - width;
  if (rest == 0) return x;
  const TensorId y = Activation(name, {batch_, width});
  graph_.ops.push_back(Split{.x = x, .a = y, .rows = batch_, .a_cols = width, .b_cols = rest});
  return y;
}

TensorId GraphBuilder::Drop(const std::string& name, TensorId x, double p) {
  if (!training_ || p == 0) return x;
  const TensorId y = Activation(name, graph_[x].dims);
  graph_.ops.push_back(Dropout{.x = x,
                               .y = y,
                               .state = state_,
                               .stream = ++dropouts_,
                               .samples = batch_,
                               .per_sample = graph_[x].elements() / batch_,
                               .p = static_cast<float>(p)});
  return y;
}

TensorId GraphBuilder::LayerNorm(const std::string& name, TensorId x, int64_t rows, int64_t cols,
                                 bool bias, double epsilon) {
  const TensorId gamma = Parameter(absl::StrCat(name, ".weight"), {cols}, 0, 1);
  const TensorId beta = bias ? Parameter(absl::StrCat(name, ".bias"), {cols}, 0) : kNone;
  const TensorId y = Activation(name, {rows, cols});
  const TensorId mean = Activation(absl::StrCat(name, ".mean"), {rows});
  const TensorId rstd = Activation(absl::StrCat(name, ".rstd"), {rows});
  graph_.ops.push_back(LayerNormForward{.x = x,
                                        .gamma = gamma,
                                        .beta = beta,
                                        .y = y,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .rows = rows,
                                        .cols = cols,
                                        .epsilon = static_cast<float>(epsilon)});
  return y;
}

TensorId GraphBuilder::RmsNorm(const std::string& name, TensorId x, int64_t rows, int64_t cols,
                               double epsilon) {
  const TensorId gamma = Parameter(absl::StrCat(name, ".weight"), {cols}, 0, 1);
  const TensorId y = Activation(name, {rows, cols});
  const TensorId rstd = Activation(absl::StrCat(name, ".rstd"), {rows});
  graph_.ops.push_back(LayerNormForward{.x = x,
                                        .gamma = gamma,
                                        .y = y,
                                        .rstd = rstd,
                                        .rows = rows,
                                        .cols = cols,
                                        .epsilon = static_cast<float>(epsilon)});
  return y;
}

TensorId GraphBuilder::SwiGlu(const std::string& name, TensorId x, int64_t rows, int64_t cols) {
  const TensorId y = Activation(name, {rows, cols});
  graph_.ops.push_back(SwiGluForward{.x = x, .y = y, .rows = rows, .cols = cols});
  return y;
}

TensorId GraphBuilder::Rotate(const std::string& name, TensorId x, int64_t time, int64_t heads,
                              int64_t rotated, int64_t head_dim, double theta) {
  const TensorId y = Activation(name, graph_[x].dims);
  graph_.ops.push_back(Rotary{.x = x,
                              .y = y,
                              .batch = batch_,
                              .time = time,
                              .heads = heads,
                              .rotated = rotated,
                              .head_dim = head_dim,
                              .theta = static_cast<float>(theta)});
  return y;
}

TensorId GraphBuilder::Embedding(const std::string& name, TensorId ids, TensorId tokens,
                                 TensorId positions, int64_t time) {
  const int64_t vocab = graph_[tokens].dims[0];
  const int64_t width = graph_[tokens].dims[1];
  const TensorId y = Activation(name, {batch_ * time, width});
  graph_.ops.push_back(EmbeddingForward{.ids = ids,
                                        .tokens = tokens,
                                        .positions = positions,
                                        .y = y,
                                        .batch = batch_,
                                        .time = time,
                                        .width = width,
                                        .vocab = vocab});
  return y;
}

void GraphBuilder::AddPositions(TensorId embedded, TensorId positions) {
  for (Op& op : graph_.ops) {
    auto* embedding = std::get_if<EmbeddingForward>(&op);
    if (embedding == nullptr || embedding->y != embedded) continue;
    TY_CHECK(embedding->positions == kNone, graph_[embedded].name, " has positions");
    embedding->positions = positions;
    return;
  }
  TY_CHECK(false, graph_[embedded].name, " is no embedding");
}

TensorId GraphBuilder::Attention(const std::string& name, TensorId qkv, int64_t time, int64_t heads,
                                 int64_t kv_heads, int64_t head_dim,
                                 const AttentionOptions& options) {
  const TensorId y = Activation(name, {batch_ * time, heads * head_dim});
  const TensorId lse = Activation(absl::StrCat(name, ".lse"), {batch_, heads, time});
  graph_.ops.push_back(AttentionForward{.qkv = qkv,
                                        .y = y,
                                        .lse = lse,
                                        .batch = batch_,
                                        .time = time,
                                        .heads = heads,
                                        .kv_heads = kv_heads,
                                        .head_dim = head_dim,
                                        .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                        .causal = options.causal,
                                        .lengths = options.lengths});
  return y;
}

TensorId GraphBuilder::NormalizeImages(const std::string& name, TensorId x, TensorId places,
                                       const std::vector<double>& mean,
                                       const std::vector<double>& std) {
  const std::vector<int64_t> dims = graph_[x].dims;  // a copy: adding tensors moves them
  const TensorId y = Activation(name, dims);
  trainyard::plan::NormalizeImages op = {.x = x,
                                         .places = places,
                                         .y = y,
                                         .pixels = graph_[x].elements() / dims.back(),
                                         .channels = dims.back(),
                                         .height = places == kNone ? 0 : dims[1],
                                         .width = places == kNone ? 0 : dims[2]};
  TY_CHECK(mean.size() == static_cast<size_t>(op.channels) && mean.size() <= op.mean.size() &&
               std.size() == mean.size(),
           op.channels, " channels, ", mean.size(), " means");
  std::copy(mean.begin(), mean.end(), op.mean.begin());
  std::copy(std.begin(), std.end(), op.std.begin());
  graph_.ops.push_back(op);
  return y;
}

TensorId GraphBuilder::Convolution(const std::string& name, TensorId x, int64_t out,
                                   const ConvolutionOptions& options) {
  const std::vector<int64_t> dims = graph_[x].dims;  // a copy: adding tensors moves them
  const int64_t kernel = options.kernel, stride = options.stride;
  const int64_t pad = options.pad.value_or(kernel / 2);
  TY_CHECK(dims.size() == 4 && (options.pad || kernel % 2 == 1), name);
  const TensorId w = Parameter(absl::StrCat(name, ".weight"),
                               {out, dims[3] / options.groups, kernel, kernel}, options.std);
  const TensorId bias = options.bias ? Parameter(absl::StrCat(name, ".bias"), {out}, 0) : kNone;
  const auto size = [&](int64_t in) { return (in + 2 * pad - kernel) / stride + 1; };
  const TensorId y = Activation(name, {batch_, size(dims[1]), size(dims[2]), out});
  graph_.ops.push_back(ConvolutionForward{.x = x,
                                          .w = w,
                                          .bias = bias,
                                          .y = y,
                                          .shape = {.batch = batch_,
                                                    .height = dims[1],
                                                    .width = dims[2],
                                                    .in = dims[3],
                                                    .out = out,
                                                    .kernel_height = kernel,
                                                    .kernel_width = kernel,
                                                    .stride = stride,
                                                    .pad = pad,
                                                    .groups = options.groups}});
  return y;
}

TensorId GraphBuilder::EmbeddingTables(const std::string& name, TensorId ids,
                                       const std::vector<int64_t>& rows, int64_t width,
                                       std::vector<TensorId>& made) {
  for (size_t t = 0; t < rows.size(); ++t) {
    // The deviation of the reference's uniform in +-sqrt(1 / rows).
    made.push_back(Parameter(absl::StrCat(name, ".", t, ".weight"), {rows[t], width},
                             std::sqrt(1.0 / (3.0 * static_cast<double>(rows[t])))));
  }
  const TensorId y = Activation(name, {batch_, static_cast<int64_t>(rows.size()), width});
  graph_.ops.push_back(
      EmbeddingTablesForward{.ids = ids, .y = y, .tables = made, .batch = batch_, .width = width});
  return y;
}

TensorId GraphBuilder::Interaction(const std::string& name, TensorId x, TensorId e) {
  const int64_t count = graph_[e].dims[1], width = graph_[e].dims[2];
  const TensorId y = Activation(name, {batch_, width + count * (count + 1) / 2});
  graph_.ops.push_back(
      InteractionForward{.x = x, .e = e, .y = y, .batch = batch_, .count = count, .width = width});
  return y;
}

TensorId GraphBuilder::BatchNorm(const std::string& name, TensorId x,
                                 const BatchNormOptions& options) {
  const std::vector<int64_t> dims = graph_[x].dims;
  const int64_t cols = dims.back(), rows = graph_[x].elements() / cols;
  BatchNormInference op{.x = x,
                        .gamma = Parameter(absl::StrCat(name, ".weight"), {cols}, 0, 1),
                        .beta = Parameter(absl::StrCat(name, ".bias"), {cols}, 0),
                        .residual = options.residual,
                        .running_mean = Buffer(absl::StrCat(name, ".running_mean"), {cols}, 0),
                        .running_var = Buffer(absl::StrCat(name, ".running_var"), {cols}, 1),
                        .y = Activation(name, dims),
                        .rows = rows,
                        .cols = cols,
                        .epsilon = static_cast<float>(options.epsilon),
                        .relu = options.relu};
  if (!training_) {
    graph_.ops.push_back(op);
    return op.y;
  }
  if (rows < 2 && status_.ok()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("spec.training.micro_batch_size: 1 leaves ", name,
                     " a single value per channel, which has no variance; use at least 2"));
  }
  graph_.ops.push_back(BatchNormForward{.x = x,
                                        .gamma = op.gamma,
                                        .beta = op.beta,
                                        .residual = op.residual,
                                        .y = op.y,
                                        .mean = Activation(absl::StrCat(name, ".mean"), {cols}),
                                        .rstd = Activation(absl::StrCat(name, ".rstd"), {cols}),
                                        .running_mean = op.running_mean,
                                        .running_var = op.running_var,
                                        .rows = rows,
                                        .cols = cols,
                                        .epsilon = op.epsilon,
                                        .momentum = static_cast<float>(options.momentum),
                                        .relu = op.relu});
  return op.y;
}

TensorId GraphBuilder::MaxPool(const std::string& name, TensorId x, int64_t window, int64_t stride,
                               int64_t pad) {
  const std::vector<int64_t> in = graph_[x].dims;
  if (stride == 0) stride = window;
  const auto size = [&](int64_t n) { return (n + 2 * pad - window) / stride + 1; };
  const std::vector<int64_t> out = {batch_, size(in[1]), size(in[2]), in[3]};
  const TensorId y = Activation(name, out);
  const TensorId index = Activation(absl::StrCat(name, ".index"), out, ElementType::kU8);
  graph_.ops.push_back(MaxPoolForward{.x = x,
                                      .y = y,
                                      .index = index,
                                      .shape = {.batch = batch_,
                                                .height = in[1],
                                                .width = in[2],
                                                .channels = in[3],
                                                .window = window,
                                                .stride = stride,
                                                .pad = pad}});
  return y;
}

TensorId GraphBuilder::MeanPool(const std::string& name, TensorId x) {
  const int64_t channels = graph_[x].dims.back();
  const int64_t pixels = graph_[x].elements() / (batch_ * channels);
  const TensorId y = Activation(name, {batch_, channels});
  graph_.ops.push_back(
      MeanPoolForward{.x = x, .y = y, .batch = batch_, .pixels = pixels, .channels = channels});
  return y;
}

TensorId GraphBuilder::Transposed(const std::string& name, TensorId x, int64_t rows, int64_t cols) {
  const TensorId y = Activation(name, {batch_, cols, rows});
  graph_.ops.push_back(Transpose{.x = x, .y = y, .batch = batch_, .rows = rows, .cols = cols});
  return y;
}

}  // namespace trainyard::plan
