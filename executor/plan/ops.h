#pragma once

// The vocabulary of a graph. Each op names its operands; their meaning and shapes are those of the
// struct of the same name in kernels/ops/. kName is what an op is called in tables. Sizes follow
// from the tensors and are kept here so that a plan is complete in itself. kNone marks an absent
// optional operand.

#include <cstdint>
#include <variant>
#include <vector>

namespace trainyard::plan {

using TensorId = int32_t;
inline constexpr TensorId kNone = -1;

// How an op touches an operand.
enum class Access { kRead, kWrite, kUpdate };  // kUpdate: reads and writes

enum class ActivationKind { kRelu, kGelu, kGeluTanh, kRelu6 };

// Every op has Visit(f): calls f(TensorId&, Access) for each operand that is present.
#define TY_OPERANDS(...)      \
  template <typename F>       \
  void Visit(F&& f) {         \
    VisitAll(f, __VA_ARGS__); \
  }

template <typename F>
void VisitAll(F&) {}
template <typename F, typename... Rest>
void VisitAll(F& f, TensorId& id, Access access, Rest&&... rest) {
  if (id != kNone) f(id, access);
  VisitAll(f, static_cast<Rest&&>(rest)...);
}

inline Access WriteOr(bool accumulate) { return accumulate ? Access::kUpdate : Access::kWrite; }

struct Matmul {
  static constexpr const char* kName = "matmul";
  TensorId a = kNone, b = kNone, bias = kNone, c = kNone;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  float scale = 1;
  // a, as stored, is the columns of tensor `a` from `a_first` on, which has `a_cols`; 0: all.
  int64_t a_cols = 0, a_first = 0;
  TY_OPERANDS(a, Access::kRead, b, Access::kRead, bias, Access::kRead, c, WriteOr(accumulate))
};

// y = base + scale a b^T in the columns [first, first + n).
struct AddProduct {
  static constexpr const char* kName = "add_product";
  TensorId base = kNone, a = kNone, b = kNone, y = kNone;
  int64_t rows = 0, cols = 0, first = 0, n = 0, k = 0;
  float scale = 1;
  TY_OPERANDS(base, Access::kRead, a, Access::kRead, b, Access::kRead, y, Access::kWrite)
};

struct ColumnSum {
  static constexpr const char* kName = "column_sum";
  TensorId x = kNone, y = kNone;
  int64_t rows = 0, cols = 0;
  bool accumulate = false;
  TY_OPERANDS(x, Access::kRead, y, WriteOr(accumulate))
};

struct ActivationForward {
  static constexpr const char* kName = "activation";
  ActivationKind kind = ActivationKind::kRelu;
  TensorId x = kNone, y = kNone;
  int64_t n = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite)
};

struct ActivationBackward {
  static constexpr const char* kName = "activation_backward";
  ActivationKind kind = ActivationKind::kRelu;
  TensorId x = kNone, dy = kNone, dx = kNone;
  int64_t n = 0;
  TY_OPERANDS(x, Access::kRead, dy, Access::kRead, dx, Access::kWrite)
};

struct Add {
  static constexpr const char* kName = "add";
  TensorId a = kNone, b = kNone, y = kNone;
  int64_t n = 0;
  TY_OPERANDS(a, Access::kRead, b, Access::kRead, y, Access::kWrite)
};

struct AddBias {
  static constexpr const char* kName = "add_bias";
  TensorId x = kNone, bias = kNone, y = kNone;
  int64_t rows = 0, cols = 0;
  TY_OPERANDS(x, Access::kRead, bias, Access::kRead, y, Access::kWrite)
};

// The backward pass of each of the two is the other.
struct Concat {
  static constexpr const char* kName = "concat";
  TensorId a = kNone, b = kNone, y = kNone;
  int64_t rows = 0, a_cols = 0, b_cols = 0;
  bool repeat_a = false;
  TY_OPERANDS(a, Access::kRead, b, Access::kRead, y, Access::kWrite)
};

struct Split {
  static constexpr const char* kName = "split";
  TensorId x = kNone, a = kNone, b = kNone;
  int64_t rows = 0, a_cols = 0, b_cols = 0;
  TY_OPERANDS(x, Access::kRead, a, Access::kWrite, b, Access::kWrite)
};

struct Cast {
  static constexpr const char* kName = "cast";
  TensorId x = kNone, y = kNone;  // or the first of contiguous runs of n elements
  int64_t n = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite)
};

struct Zero {
  static constexpr const char* kName = "zero";
  TensorId x = kNone;
  int64_t n = 0;
  TY_OPERANDS(x, Access::kWrite)
};

// The backward pass is the same op on the gradient, the other way round.
struct Rotary {
  static constexpr const char* kName = "rotary";
  TensorId x = kNone, y = kNone;
  int64_t batch = 0, time = 0, heads = 0, rotated = 0, head_dim = 0;
  float theta = 10000;
  bool inverse = false;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite)
};

struct SwiGluForward {
  static constexpr const char* kName = "swiglu";
  TensorId x = kNone, y = kNone;
  int64_t rows = 0, cols = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite)
};

struct SwiGluBackward {
  static constexpr const char* kName = "swiglu_backward";
  TensorId x = kNone, dy = kNone, dx = kNone;
  int64_t rows = 0, cols = 0;
  TY_OPERANDS(x, Access::kRead, dy, Access::kRead, dx, Access::kWrite)
};

// The backward pass is the same op on the gradient.
struct Dropout {
  static constexpr const char* kName = "dropout";
  TensorId x = kNone, y = kNone, state = kNone;
  uint32_t stream = 0;
  int64_t samples = 0, per_sample = 0;
  float p = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite, state, Access::kRead)
};

// Without mean it is RMSNorm. With a residual, of passes/residual_norm.h alone, the norm of the
// sum.
struct LayerNormForward {
  static constexpr const char* kName = "layer_norm";
  TensorId x = kNone, residual = kNone, sum = kNone;
  TensorId gamma = kNone, beta = kNone, y = kNone, mean = kNone, rstd = kNone;
  int64_t rows = 0, cols = 0;
  float epsilon = 1e-5f;
  TY_OPERANDS(x, Access::kRead, residual, Access::kRead, gamma, Access::kRead, beta, Access::kRead,
              sum, Access::kWrite, y, Access::kWrite, mean, Access::kWrite, rstd, Access::kWrite)
};

struct LayerNormBackward {
  static constexpr const char* kName = "layer_norm_backward";
  TensorId dy = kNone, x = kNone, gamma = kNone, mean = kNone, rstd = kNone;
  TensorId dx = kNone, dgamma = kNone, dbeta = kNone;
  int64_t rows = 0, cols = 0;
  bool accumulate_dx = false, accumulate_params = false;
  TY_OPERANDS(dy, Access::kRead, x, Access::kRead, gamma, Access::kRead, mean, Access::kRead, rstd,
              Access::kRead, dx, WriteOr(accumulate_dx), dgamma, WriteOr(accumulate_params), dbeta,
              WriteOr(accumulate_params))
};

struct BatchNormForward {
  static constexpr const char* kName = "batch_norm";
  TensorId x = kNone, gamma = kNone, beta = kNone, residual = kNone, y = kNone;
  TensorId mean = kNone, rstd = kNone, running_mean = kNone, running_var = kNone;
  int64_t rows = 0, cols = 0;
  float epsilon = 1e-5f, momentum = 0.1f;
  bool relu = false, again = false;
  Access moments() const { return again ? Access::kRead : Access::kWrite; }
  TY_OPERANDS(x, Access::kRead, gamma, Access::kRead, beta, Access::kRead, residual, Access::kRead,
              y, Access::kWrite, mean, moments(), rstd, moments(), running_mean, Access::kUpdate,
              running_var, Access::kUpdate)
};

struct BatchNormInference {
  static constexpr const char* kName = "batch_norm_inference";
  TensorId x = kNone, gamma = kNone, beta = kNone, residual = kNone;
  TensorId running_mean = kNone, running_var = kNone, y = kNone;
  int64_t rows = 0, cols = 0;
  float epsilon = 1e-5f;
  bool relu = false;
  TY_OPERANDS(x, Access::kRead, gamma, Access::kRead, beta, Access::kRead, residual, Access::kRead,
              running_mean, Access::kRead, running_var, Access::kRead, y, Access::kWrite)
};

struct BatchNormBackward {
  static constexpr const char* kName = "batch_norm_backward";
  TensorId dy = kNone, x = kNone, y = kNone, gamma = kNone, mean = kNone, rstd = kNone;
  TensorId dx = kNone, dresidual = kNone, dgamma = kNone, dbeta = kNone;
  int64_t rows = 0, cols = 0;
  bool accumulate_params = false;
  TY_OPERANDS(dy, Access::kRead, x, Access::kRead, y, Access::kRead, gamma, Access::kRead, mean,
              Access::kRead, rstd, Access::kRead, dx, Access::kWrite, dresidual, Access::kWrite,
              dgamma, WriteOr(accumulate_params), dbeta, WriteOr(accumulate_params))
};

struct EmbeddingForward {
  static constexpr const char* kName = "embedding";
  TensorId ids = kNone, tokens = kNone, positions = kNone, y = kNone;
  int64_t batch = 0, time = 0, width = 0, vocab = 0;
  TY_OPERANDS(ids, Access::kRead, tokens, Access::kRead, positions, Access::kRead, y,
              Access::kWrite)
};

struct EmbeddingBackward {
  static constexpr const char* kName = "embedding_backward";
  TensorId dy = kNone, ids = kNone, dtokens = kNone, dpositions = kNone;
  int64_t batch = 0, time = 0, width = 0, vocab = 0;
  TY_OPERANDS(dy, Access::kRead, ids, Access::kRead, dtokens, Access::kUpdate, dpositions,
              Access::kUpdate)
};

// Ops on a list of tables of one width name each of them; they lie one after the other.
struct EmbeddingTablesForward {
  static constexpr const char* kName = "embedding_tables";
  TensorId ids = kNone, y = kNone;
  std::vector<TensorId> tables;
  int64_t batch = 0, width = 0;
  template <typename F>
  void Visit(F&& f) {
    f(ids, Access::kRead);
    for (TensorId& table : tables) f(table, Access::kRead);
    f(y, Access::kWrite);
  }
};

struct EmbeddingTablesBackward {
  static constexpr const char* kName = "embedding_tables_backward";
  TensorId dy = kNone, ids = kNone;
  std::vector<TensorId> gradients;
  int64_t batch = 0, width = 0;
  template <typename F>
  void Visit(F&& f) {
    f(dy, Access::kRead);
    f(ids, Access::kRead);
    for (TensorId& gradient : gradients) f(gradient, Access::kUpdate);
  }
};

struct KeepRows {
  static constexpr const char* kName = "keep_rows";
  TensorId dy = kNone, ids = kNone, kept_dy = kNone, kept_ids = kNone, state = kNone;
  int64_t samples = 0, batch = 0, count = 0, width = 0;
  TY_OPERANDS(dy, Access::kRead, ids, Access::kRead, kept_dy, Access::kUpdate, kept_ids,
              Access::kUpdate, state, Access::kRead)
};

struct MergeRows {
  static constexpr const char* kName = "merge_rows";
  TensorId grad = kNone, ids = kNone;
  int64_t samples = 0, count = 0, width = 0;
  TY_OPERANDS(grad, Access::kUpdate, ids, Access::kUpdate)
};

struct InteractionForward {
  static constexpr const char* kName = "interaction";
  TensorId x = kNone, e = kNone, y = kNone;
  int64_t batch = 0, count = 0, width = 0;
  TY_OPERANDS(x, Access::kRead, e, Access::kRead, y, Access::kWrite)
};

struct InteractionBackward {
  static constexpr const char* kName = "interaction_backward";
  TensorId dy = kNone, x = kNone, e = kNone, dx = kNone, de = kNone;
  int64_t batch = 0, count = 0, width = 0;
  TY_OPERANDS(dy, Access::kRead, x, Access::kRead, e, Access::kRead, dx, Access::kWrite, de,
              Access::kWrite)
};

struct AttentionForward {
  static constexpr const char* kName = "attention";
  TensorId qkv = kNone, lengths = kNone, y = kNone, lse = kNone;
  int64_t batch = 0, time = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  bool causal = true;
  TY_OPERANDS(qkv, Access::kRead, lengths, Access::kRead, y, Access::kWrite, lse, Access::kWrite)
};

struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  TensorId dy = kNone, qkv = kNone, lengths = kNone, y = kNone, lse = kNone, dqkv = kNone;
  int64_t batch = 0, time = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  bool causal = true;
  TY_OPERANDS(dy, Access::kRead, qkv, Access::kRead, lengths, Access::kRead, y, Access::kRead, lse,
              Access::kRead, dqkv, Access::kWrite)
};

struct CrossEntropy {
  static constexpr const char* kName = "cross_entropy";
  TensorId logits = kNone, targets = kNone;
  TensorId losses = kNone, z_losses = kNone, correct = kNone, dlogits = kNone, state = kNone;
  int64_t rows = 0, classes = 0;
  float scale = 1, smoothing = 0, z_loss = 0;
  TY_OPERANDS(logits, Access::kRead, targets, Access::kRead, losses, Access::kWrite, z_losses,
              Access::kWrite, correct, Access::kWrite, dlogits, Access::kWrite, state,
              Access::kRead)
};

struct CountTargets {
  static constexpr const char* kName = "count_targets";
  TensorId targets = kNone, count = kNone;
  int64_t n = 0;
  bool accumulate = false;
  TY_OPERANDS(targets, Access::kRead, count, WriteOr(accumulate))
};

struct BinaryCrossEntropy {
  static constexpr const char* kName = "binary_cross_entropy";
  TensorId logits = kNone, targets = kNone, losses = kNone, correct = kNone, dlogits = kNone;
  TensorId state = kNone;
  int64_t rows = 0;
  float scale = 1;
  TY_OPERANDS(logits, Access::kRead, targets, Access::kRead, losses, Access::kWrite, correct,
              Access::kWrite, dlogits, Access::kWrite, state, Access::kRead)
};

struct Sum {
  static constexpr const char* kName = "sum";
  TensorId x = kNone, sum = kNone;
  int64_t n = 0;
  bool accumulate = false;
  TY_OPERANDS(x, Access::kRead, sum, WriteOr(accumulate))
};

struct ConvolutionShape {
  int64_t batch = 0, height = 0, width = 0, in = 0, out = 0;
  int64_t kernel_height = 1, kernel_width = 1, stride = 1, pad = 0, groups = 1;
};

struct ConvolutionForward {
  static constexpr const char* kName = "convolution";
  TensorId x = kNone, w = kNone, bias = kNone, y = kNone;
  ConvolutionShape shape;
  TY_OPERANDS(x, Access::kRead, w, Access::kRead, bias, Access::kRead, y, Access::kWrite)
};

struct ConvolutionBackwardData {
  static constexpr const char* kName = "convolution_dx";
  TensorId dy = kNone, w = kNone, dx = kNone;
  ConvolutionShape shape;
  TY_OPERANDS(dy, Access::kRead, w, Access::kRead, dx, Access::kWrite)
};

struct ConvolutionBackwardWeights {
  static constexpr const char* kName = "convolution_dw";
  TensorId x = kNone, dy = kNone, dw = kNone, dbias = kNone;
  ConvolutionShape shape;
  bool accumulate = false;
  TY_OPERANDS(x, Access::kRead, dy, Access::kRead, dw, WriteOr(accumulate), dbias,
              WriteOr(accumulate))
};

struct PoolShape {
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  int64_t window = 2, stride = 2, pad = 0;
};

struct NormalizeImages {
  static constexpr const char* kName = "normalize_images";
  TensorId x = kNone, places = kNone, y = kNone;
  int64_t pixels = 0, channels = 0;
  int64_t height = 0, width = 0;  // with places
  std::vector<double> mean, std;  // per channel
  TY_OPERANDS(x, Access::kRead, places, Access::kRead, y, Access::kWrite)
};

struct MaxPoolForward {
  static constexpr const char* kName = "max_pool";
  TensorId x = kNone, y = kNone, index = kNone;
  PoolShape shape;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite, index, Access::kWrite)
};

struct MaxPoolBackward {
  static constexpr const char* kName = "max_pool_backward";
  TensorId dy = kNone, index = kNone, dx = kNone;
  PoolShape shape;
  TY_OPERANDS(dy, Access::kRead, index, Access::kRead, dx, Access::kWrite)
};

struct MeanPoolForward {
  static constexpr const char* kName = "mean_pool";
  TensorId x = kNone, y = kNone;
  int64_t batch = 0, pixels = 0, channels = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite)
};

struct MeanPoolBackward {
  static constexpr const char* kName = "mean_pool_backward";
  TensorId dy = kNone, dx = kNone;
  int64_t batch = 0, pixels = 0, channels = 0;
  TY_OPERANDS(dy, Access::kRead, dx, Access::kWrite)
};

struct Transpose {
  static constexpr const char* kName = "transpose";
  TensorId x = kNone, y = kNone;
  int64_t batch = 1, rows = 0, cols = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kWrite)
};

struct SquaredNorm {
  static constexpr const char* kName = "squared_norm";
  TensorId x = kNone, sum = kNone;  // x: the first of a contiguous run of n elements
  int64_t n = 0;
  bool accumulate = false;
  TY_OPERANDS(x, Access::kRead, sum, WriteOr(accumulate))
};

struct ClipScale {
  static constexpr const char* kName = "clip_scale";
  TensorId sum = kNone, count = kNone, loss = kNone, norm = kNone, scale = kNone, state = kNone;
  int64_t rows = 0;
  float max_norm = 0;
  TY_OPERANDS(sum, Access::kRead, count, Access::kRead, loss, Access::kRead, norm, Access::kWrite,
              scale, Access::kUpdate, state, Access::kRead)
};

// Optimizer ops name the first tensor of a contiguous run of n elements in each of their operands.
struct SgdStep {
  static constexpr const char* kName = "sgd";
  TensorId w = kNone, grad = kNone, velocity = kNone, grad_scale = kNone, state = kNone;
  TensorId copy = kNone;
  int64_t n = 0;
  float momentum = 0, weight_decay = 0, learning_rate_scale = 1;
  bool nesterov = false;
  TY_OPERANDS(w, Access::kUpdate, grad, Access::kRead, velocity, Access::kUpdate, grad_scale,
              Access::kRead, state, Access::kRead, copy, Access::kWrite)
};

struct AdamWStep {
  static constexpr const char* kName = "adamw";
  TensorId w = kNone, grad = kNone, m = kNone, v = kNone, grad_scale = kNone, state = kNone;
  TensorId copy = kNone;
  int64_t n = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0, learning_rate_scale = 1;
  TY_OPERANDS(w, Access::kUpdate, grad, Access::kRead, m, Access::kUpdate, v, Access::kUpdate,
              grad_scale, Access::kRead, state, Access::kRead, copy, Access::kWrite)
};

struct EmaStep {
  static constexpr const char* kName = "ema";
  TensorId average = kNone, w = kNone, grad_scale = kNone, state = kNone;
  int64_t n = 0;
  double decay = 0;
  bool warmup = false;
  TY_OPERANDS(average, Access::kUpdate, w, Access::kRead, grad_scale, Access::kRead, state,
              Access::kRead)
};

struct CopyIfTaken {
  static constexpr const char* kName = "copy_if_taken";
  TensorId x = kNone, y = kNone, grad_scale = kNone;
  int64_t n = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kUpdate, grad_scale, Access::kRead)
};

// From here on `offset` says where in the operands a stored part of the parameter begins.
struct LambStep {
  static constexpr const char* kName = "lamb";
  TensorId w = kNone, grad = kNone, m = kNone, v = kNone, grad_scale = kNone, state = kNone;
  int64_t offset = 0, n = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-6f, weight_decay = 0, learning_rate_scale = 1;
  bool adapt = true;
  TY_OPERANDS(w, Access::kUpdate, grad, Access::kRead, m, Access::kUpdate, v, Access::kUpdate,
              grad_scale, Access::kRead, state, Access::kRead)
};

struct MuonMomentum {
  static constexpr const char* kName = "muon_momentum";
  TensorId grad = kNone, velocity = kNone, y = kNone, grad_scale = kNone;
  int64_t offset = 0, n = 0;
  float momentum = 0.95f;
  bool nesterov = true;
  TY_OPERANDS(grad, Access::kRead, velocity, Access::kUpdate, y, Access::kWrite, grad_scale,
              Access::kRead)
};

struct DivideByNorm {
  static constexpr const char* kName = "divide_by_norm";
  TensorId x = kNone, sum = kNone;
  int64_t n = 0;
  float epsilon = 1e-7f;
  TY_OPERANDS(x, Access::kUpdate, sum, Access::kRead)
};

struct NewtonSchulz {
  static constexpr const char* kName = "newton_schulz";
  TensorId x = kNone, y = kNone;
  int64_t n = 0;
  float a = 0, b = 0, c = 0;
  TY_OPERANDS(x, Access::kRead, y, Access::kUpdate)
};

struct MuonStep {
  static constexpr const char* kName = "muon";
  TensorId w = kNone, x = kNone, grad_scale = kNone, state = kNone;
  int64_t offset = 0, n = 0;
  float scale = 1, weight_decay = 0, learning_rate_scale = 1;
  TY_OPERANDS(w, Access::kUpdate, x, Access::kRead, grad_scale, Access::kRead, state, Access::kRead)
};

// The steps on rows of tables; m and v go with the tables.
struct SgdRows {
  static constexpr const char* kName = "sgd_rows";
  TensorId grad = kNone, ids = kNone, grad_scale = kNone, state = kNone;
  std::vector<TensorId> tables;
  int64_t samples = 0, width = 0;
  float learning_rate_scale = 1;
  template <typename F>
  void Visit(F&& f) {
    VisitAll(f, grad, Access::kRead, ids, Access::kRead, grad_scale, Access::kRead, state,
             Access::kRead);
    for (TensorId& table : tables) f(table, Access::kUpdate);
  }
};

struct AdamWRows {
  static constexpr const char* kName = "adamw_rows";
  TensorId grad = kNone, ids = kNone, grad_scale = kNone, state = kNone;
  std::vector<TensorId> tables, m, v;
  int64_t samples = 0, width = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0, learning_rate_scale = 1;
  template <typename F>
  void Visit(F&& f) {
    VisitAll(f, grad, Access::kRead, ids, Access::kRead, grad_scale, Access::kRead, state,
             Access::kRead);
    for (auto* ids_of : {&tables, &m, &v}) {
      for (TensorId& id : *ids_of) f(id, Access::kUpdate);
    }
  }
};

#undef TY_OPERANDS

using Op = std::variant<
    ActivationBackward, ActivationForward, AdamWRows, AdamWStep, Add, AddBias, AddProduct,
    AttentionBackward, AttentionForward, BatchNormBackward, BatchNormForward, BatchNormInference,
    BinaryCrossEntropy, Cast, ClipScale, ColumnSum, Concat, ConvolutionBackwardData,
    ConvolutionBackwardWeights, ConvolutionForward, CopyIfTaken, CountTargets, CrossEntropy,
    DivideByNorm, Dropout, EmaStep, EmbeddingBackward, EmbeddingForward, EmbeddingTablesBackward,
    EmbeddingTablesForward, InteractionBackward, InteractionForward, KeepRows, LambStep,
    LayerNormBackward, LayerNormForward, Matmul, MaxPoolBackward, MaxPoolForward, MeanPoolBackward,
    MeanPoolForward, MergeRows, MuonMomentum, MuonStep, NewtonSchulz, NormalizeImages, Rotary,
    SgdRows, SgdStep, Split, SquaredNorm, Sum, SwiGluBackward, SwiGluForward, Transpose, Zero>;

}  // namespace trainyard::plan
