#pragma once

// Writes forward graphs. A family calls it once per graph: for training (micro-batch, dropout) and
// for evaluation (its own batch, no dropout); both share the parameters.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

class GraphBuilder {
 public:
  // Appends to graph.ops. Parameters and buffers that `graph` has already are found again by name.
  // `tensor`: shards that layers are cut into (shard_builder.h). `uses_apart`: a head that is tied
  // to an embedding has a parameter of its own, with the same values.
  GraphBuilder(Graph& graph, int64_t batch, bool training, TensorId state, int64_t tensor = 1,
               bool uses_apart = false);

  int64_t batch() const { return batch_; }
  bool training() const { return training_; }
  int64_t tensor_shards() const { return shards_; }
  const Tensor& tensor(TensorId id) const { return graph_[id]; }

  // The first thing that cannot be, as kInvalidArgument: a tensor of more than 2^46 bytes, a batch
  // norm of a single row in training.
  const absl::Status& status() const { return status_; }

  TensorId Input(const std::string& name, ElementType type, std::vector<int64_t> dims);
  TensorId Activation(const std::string& name, std::vector<int64_t> dims,
                      ElementType type = ElementType::kF32);

  // Starts from a normal of deviation `std`, or at `value` when std is 0.
  TensorId Parameter(const std::string& name, std::vector<int64_t> dims, double std,
                     double value = 0);

  // State that no gradient trains; starts at `value`.
  TensorId Buffer(const std::string& name, std::vector<int64_t> dims, double value);

  // How a weight matrix is stored: PyTorch's Linear [out, in], or GPT-2's Conv1D [in, out].
  enum class WeightLayout { kOutIn, kInOut };
  struct LinearOptions {
    WeightLayout layout = WeightLayout::kOutIn;
    bool bias = true;
    double std = 0.02;
  };
  // y[rows, out] = x[rows, in] W + b; parameters `name`.weight and `name`.bias.
  TensorId Linear(const std::string& name, TensorId x, int64_t rows, int64_t in, int64_t out,
                  const LinearOptions& options);
  // Several linear layers on one input as one: y[rows, sum of out]. Weight and bias are one
  // parameter each, stored as `part.name`.weight [out, in] and `part.name`.bias [out].
  struct LinearPart {
    std::string name;
    int64_t out = 0;
  };
  TensorId LinearSideBySide(const std::string& name, TensorId x, int64_t rows, int64_t in,
                            const std::vector<LinearPart>& parts, double std, bool bias = false);
  // y[rows, out] = x[rows, in] w^T + bias with a weight [out, in] and, if any, a bias that exist
  // already.
  TensorId Project(const std::string& name, TensorId x, TensorId w, int64_t rows, int64_t in,
                   int64_t out, TensorId bias = kNone);

  // The tensor's elements under other dims, for what is built next.
  void View(TensorId id, std::vector<int64_t> dims);

  TensorId Activate(const std::string& name, TensorId x, ActivationKind kind);
  TensorId Sum(const std::string& name, TensorId a, TensorId b);
  // x as [rows, cols], the first `cols` elements of `bias` added to each row.
  TensorId AddBias(const std::string& name, TensorId x, TensorId bias, int64_t cols);
  // [rows, a_cols] and [rows, b_cols] side by side; a may be a parameter [a_cols] for every row.
  TensorId Concat(const std::string& name, TensorId a, int64_t a_cols, TensorId b, int64_t b_cols);
  // [batch, time, width] to [batch, width]: the first of each sequence.
  TensorId First(const std::string& name, TensorId x, int64_t width);
  // x itself when p is 0 or this graph is not for training.
  TensorId Drop(const std::string& name, TensorId x, double p);
  TensorId LayerNorm(const std::string& name, TensorId x, int64_t rows, int64_t cols, bool bias,
                     double epsilon = 1e-5);
  TensorId RmsNorm(const std::string& name, TensorId x, int64_t rows, int64_t cols, double epsilon);
  // x [rows, 2 * cols], each row gate and up; y [rows, cols].
  TensorId SwiGlu(const std::string& name, TensorId x, int64_t rows, int64_t cols);
  // Rotary positions on the first `rotated` of the heads.
  TensorId Rotate(const std::string& name, TensorId x, int64_t time, int64_t heads, int64_t rotated,
                  int64_t head_dim, double theta);
  TensorId Embedding(const std::string& name, TensorId ids, TensorId tokens, TensorId positions,
                     int64_t time);
  // Adds `positions` [time, width] in the op that made `embedded`: an Embedding without positions.
  void AddPositions(TensorId embedded, TensorId positions);
  // One row of each of `rows.size()` tables of `width`, named `name`.{t}.weight, per sample of ids
  // [batch, tables]: [batch, tables, width]. `made`: the tables.
  TensorId EmbeddingTables(const std::string& name, TensorId ids, const std::vector<int64_t>& rows,
                           int64_t width, std::vector<TensorId>& made);
  // x [batch, width] and the products of all pairs of x and the rows of e [batch, count, width].
  TensorId Interaction(const std::string& name, TensorId x, TensorId e);
  // Attention over qkv [batch, time, heads + 2 * kv_heads, head_dim], scaled by 1 /
  // sqrt(head_dim). lengths: i32 [batch], positions from there on are padding.
  struct AttentionOptions {
    bool causal = true;
    TensorId lengths = kNone;
  };
  TensorId Attention(const std::string& name, TensorId qkv, int64_t time, int64_t heads,
                     int64_t kv_heads, int64_t head_dim, const AttentionOptions& options);
  // (x / 255 - mean) / std of bytes x [batch, height, width, channels], or of a crop of each image
  // by places [batch, 3] unless that is kNone; one mean and one std per channel.
  TensorId NormalizeImages(const std::string& name, TensorId x, TensorId places,
                           const std::vector<double>& mean, const std::vector<double>& std);
  // x [batch, height, width, in]; the weight is [out, in / groups, kernel, kernel]. Without `pad`
  // the kernel is odd and pad half of it, so that stride 1 keeps height and width.
  struct ConvolutionOptions {
    int64_t kernel = 1, stride = 1;
    std::optional<int64_t> pad = std::nullopt;
    int64_t groups = 1;
    bool bias = true;
    double std = 0.02;
  };
  TensorId Convolution(const std::string& name, TensorId x, int64_t out,
                       const ConvolutionOptions& options);
  // relu?(batch norm of x + residual?) over all but the last dimension; parameters `name`.weight
  // and .bias, buffers `name`.running_mean and .running_var. Training takes the statistics of the
  // batch, evaluation the running ones.
  struct BatchNormOptions {
    TensorId residual = kNone;
    bool relu = false;
    double epsilon = 1e-5, momentum = 0.1;
  };
  TensorId BatchNorm(const std::string& name, TensorId x, const BatchNormOptions& options);
  // Windows `stride` apart (0: window), over an image padded by `pad`.
  TensorId MaxPool(const std::string& name, TensorId x, int64_t window, int64_t stride = 0,
                   int64_t pad = 0);
  // [batch, .., channels] to [batch, channels].
  TensorId MeanPool(const std::string& name, TensorId x);
  // [batch, rows, cols] to [batch, cols, rows].
  TensorId Transposed(const std::string& name, TensorId x, int64_t rows, int64_t cols);

 private:
  friend class ShardBuilder;
  TensorId New(Tensor tensor);
  TensorId Find(Tensor tensor);  // a parameter or buffer that the graph may have already

  Graph& graph_;
  const int64_t batch_;
  const bool training_;
  const TensorId state_;
  const int64_t shards_;
  const bool uses_apart_;
  uint32_t dropouts_ = 0;
  absl::flat_hash_map<std::string, TensorId> by_name_;  // parameters and buffers
  absl::Status status_;
};

}  // namespace trainyard::plan
