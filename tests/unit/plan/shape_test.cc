// The sizes that each op carries against the tensors that it names: a kernel believes the op.

#include <gtest/gtest.h>

#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

struct SizeChecker {
  const Plan& plan;
  ElementType computed = ElementType::kF32;

  void Holds(TensorId id, int64_t elements, ElementType type = ElementType::kF32) const {
    if (id == kNone) return;
    EXPECT_EQ(plan.tensors[id].elements(), elements) << plan.tensors[id].name;
    EXPECT_EQ(plan.tensors[id].type, type) << plan.tensors[id].name;
    EXPECT_EQ(plan.tensors[id].row_stride, 0) << plan.tensors[id].name << ": not for this op";
  }
  // Operands that kernels/ops calls E: of the plan's type, or fp32, all of an op alike.
  struct Operand {
    TensorId id;
    int64_t elements;
  };
  ElementType Elements(std::initializer_list<Operand> operands) const {
    const ElementType type = plan.tensors[operands.begin()->id].type;
    EXPECT_TRUE(type == ElementType::kF32 || type == computed) << static_cast<int>(type);
    for (const Operand& o : operands) Holds(o.id, o.elements, type);
    return type;
  }
  // Rows of `cols` elements, which may lie apart.
  void Rows(TensorId id, int64_t rows, int64_t cols) const {
    if (id == kNone) return;
    const Tensor& tensor = plan.tensors[id];
    if (tensor.row_stride == 0) return void(Elements({{id, rows * cols}}));
    EXPECT_EQ(tensor.dims, (std::vector<int64_t>{rows, cols})) << tensor.name;
    EXPECT_GT(tensor.row_stride, cols) << tensor.name;
    EXPECT_EQ(tensor.bytes(), rows * tensor.row_stride * SizeOf(tensor.type)) << tensor.name;
    EXPECT_EQ(tensor.kind, TensorKind::kActivation) << tensor.name;
  }
  // A run may go on over neighbours and padding.
  void Begins(TensorId id, int64_t elements) const {
    if (id == kNone) return;
    EXPECT_GE(elements, plan.tensors[id].elements()) << plan.tensors[id].name;
  }

  void operator()(const Matmul& o) const {
    const int64_t stored_rows = o.transpose_a ? o.k : o.m, width = o.transpose_a ? o.m : o.k;
    if (o.a_cols > 0) EXPECT_LE(o.a_first + width, o.a_cols) << plan.tensors[o.a].name;
    Elements({{o.b, o.k * o.n}});
    if (o.a_cols > 0) Elements({{o.a, stored_rows * o.a_cols}});
    if (o.a_cols == 0) Rows(o.a, stored_rows, width);
    EXPECT_EQ(plan.tensors[o.a].type, computed) << "products are what the job asked for";
    Holds(o.bias, o.n), Rows(o.c, o.m, o.n);
    const TensorKind kind = plan.tensors[o.c].kind;
    // Of a gradient a sum is fp32.
    const bool whole = !o.accumulate && computed == ElementType::kBF16;
    if (kind == TensorKind::kGradient && !whole) Holds(o.c, o.m * o.n);
  }
  void operator()(const AddProduct& o) const {
    Elements({{o.base, o.rows * o.cols}, {o.a, o.rows * o.k}, {o.b, o.n * o.k}});
    Elements({{o.y, o.rows * o.cols}});
    EXPECT_EQ(plan.tensors[o.y].type, computed) << "products are what the job asked for";
    EXPECT_LE(o.first + o.n, o.cols) << plan.tensors[o.y].name;
  }
  void operator()(const ColumnSum& o) const {
    Rows(o.x, o.rows, o.cols);
    // What belongs to the first row alone of a table is added to zeros.
    if (!o.accumulate) return Holds(o.y, o.cols);
    EXPECT_GE(plan.tensors[o.y].elements(), o.cols) << plan.tensors[o.y].name;
  }
  void operator()(const ActivationForward& o) const { Elements({{o.x, o.n}, {o.y, o.n}}); }
  void operator()(const ActivationBackward& o) const {
    Elements({{o.x, o.n}, {o.dy, o.n}, {o.dx, o.n}});
  }
  void operator()(const Add& o) const {
    const ElementType sum = Elements({{o.a, o.n}, {o.y, o.n}});
    if (sum != ElementType::kF32) Holds(o.b, o.n, sum);
    Elements({{o.b, o.n}});
  }
  void operator()(const Cast& o) const {
    const TensorKind from = plan.tensors[o.x].kind;
    if (from == TensorKind::kBuffer || from == TensorKind::kPendingBuffer) {
      EXPECT_EQ(plan.tensors[o.x].type, plan.tensors[o.y].type);
      return Begins(o.x, o.n), Begins(o.y, o.n);
    }
    if (from == TensorKind::kAlias)
      return Holds(o.x, o.n), Holds(o.y, o.n);  // of rows of a gradient
    EXPECT_NE(plan.tensors[o.x].type, plan.tensors[o.y].type) << plan.tensors[o.x].name;
    if (plan.tensors[o.y].kind == TensorKind::kWeightCopy) {
      return Begins(o.x, o.n), Begins(o.y, o.n);
    }
    Elements({{o.x, o.n}}), Elements({{o.y, o.n}});
  }
  void operator()(const AddBias& o) const {
    Holds(o.x, o.rows * o.cols), Holds(o.y, o.rows * o.cols);
    EXPECT_GE(plan.tensors[o.bias].elements(), o.cols) << plan.tensors[o.bias].name;
  }
  void operator()(const Concat& o) const {
    Holds(o.a, o.repeat_a ? o.a_cols : o.rows * o.a_cols), Holds(o.b, o.rows * o.b_cols);
    Holds(o.y, o.rows * (o.a_cols + o.b_cols));
  }
  void operator()(const Split& o) const {
    Holds(o.x, o.rows * (o.a_cols + o.b_cols));
    Holds(o.a, o.rows * o.a_cols), Holds(o.b, o.rows * o.b_cols);
  }
  void operator()(const Zero& o) const { Begins(o.x, o.n); }
  void operator()(const Dropout& o) const {
    Elements({{o.x, o.samples * o.per_sample}, {o.y, o.samples * o.per_sample}});
    EXPECT_EQ(o.samples, plan.micro_batch);
  }
  void operator()(const Rotary& o) const {
    const int64_t n = o.batch * o.time * o.heads * o.head_dim;
    Elements({{o.x, n}, {o.y, n}});
  }
  void operator()(const SoftCapForward& o) const { Elements({{o.x, o.n}, {o.y, o.n}}); }
  void operator()(const SoftCapBackward& o) const {
    Elements({{o.y, o.n}, {o.dy, o.n}, {o.dx, o.n}});
  }
  void operator()(const SwiGluForward& o) const {
    Elements({{o.x, 2 * o.rows * o.cols}, {o.y, o.rows * o.cols}});
  }
  void operator()(const SwiGluBackward& o) const {
    const int64_t n = o.rows * o.cols;
    Elements({{o.x, 2 * n}, {o.dx, 2 * n}, {o.dy, n}});
  }
  void operator()(const LayerNormForward& o) const {
    Holds(o.x, o.rows * o.cols), Elements({{o.y, o.rows * o.cols}}), Holds(o.gamma, o.cols);
    EXPECT_EQ(o.residual == kNone, o.sum == kNone);
    if (o.residual != kNone) Elements({{o.residual, o.rows * o.cols}});
    Holds(o.sum, o.rows * o.cols);
    Holds(o.beta, o.cols), Holds(o.mean, o.rows), Holds(o.rstd, o.rows);
  }
  void operator()(const LayerNormBackward& o) const {
    Holds(o.x, o.rows * o.cols), Elements({{o.dy, o.rows * o.cols}});
    Holds(o.dx, o.rows * o.cols);
    Holds(o.gamma, o.cols), Holds(o.dgamma, o.cols), Holds(o.dbeta, o.cols);
    Holds(o.mean, o.rows), Holds(o.rstd, o.rows);
  }
  void operator()(const BatchNormForward& o) const {
    const int64_t n = o.rows * o.cols;
    Elements({{o.x, n}, {o.residual, n}, {o.y, n}});
    for (const TensorId id : {o.gamma, o.beta, o.mean, o.rstd, o.running_mean, o.running_var}) {
      Holds(id, o.cols);
    }
  }
  void operator()(const BatchNormInference& o) const {
    const int64_t n = o.rows * o.cols;
    Elements({{o.x, n}, {o.residual, n}, {o.y, n}});
    for (const TensorId id : {o.gamma, o.beta, o.running_mean, o.running_var}) Holds(id, o.cols);
  }
  void operator()(const BatchNormBackward& o) const {
    const int64_t n = o.rows * o.cols;
    Elements({{o.dy, n}, {o.x, n}, {o.y, n}, {o.dx, n}, {o.dresidual, n}});
    for (const TensorId id : {o.gamma, o.mean, o.rstd, o.dgamma, o.dbeta}) Holds(id, o.cols);
  }
  void operator()(const EmbeddingForward& o) const {
    Holds(o.ids, o.batch * o.time, ElementType::kI32), Holds(o.tokens, o.vocab * o.width);
    Holds(o.positions, o.time * o.width), Holds(o.y, o.batch * o.time * o.width);
  }
  void operator()(const EmbeddingBackward& o) const {
    Holds(o.ids, o.batch * o.time, ElementType::kI32), Holds(o.dtokens, o.vocab * o.width);
    Holds(o.dpositions, o.time * o.width), Holds(o.dy, o.batch * o.time * o.width);
  }
  void Tables(const std::vector<TensorId>& tables, int64_t count, int64_t width) const {
    EXPECT_EQ(static_cast<int64_t>(tables.size()), count);
    for (const TensorId id : tables) EXPECT_EQ(plan.tensors[id].dims[1], width);
  }
  void operator()(const EmbeddingTablesForward& o) const {
    const int64_t count = plan.tensors[o.ids].dims[1];
    Tables(o.tables, count, o.width), Holds(o.ids, o.batch * count, ElementType::kI32);
    Holds(o.y, o.batch * count * o.width);
  }
  void operator()(const EmbeddingTablesBackward& o) const {
    const int64_t count = plan.tensors[o.ids].dims[1];
    Tables(o.gradients, count, o.width), Holds(o.ids, o.batch * count, ElementType::kI32);
    Holds(o.dy, o.batch * count * o.width);
  }
  void operator()(const KeepRows& o) const {
    Holds(o.ids, o.batch * o.count, ElementType::kI32), Holds(o.dy, o.batch * o.count * o.width);
    Holds(o.kept_ids, o.samples * o.count, ElementType::kI32);
    Holds(o.kept_dy, o.samples * o.count * o.width);
    EXPECT_EQ(o.samples, plan.micro_batch * plan.micro_batches * plan.logical_ranks);
  }
  void operator()(const MergeRows& o) const {
    Holds(o.ids, o.samples * o.count, ElementType::kI32);
    Holds(o.grad, o.samples * o.count * o.width);
  }
  void operator()(const SgdRows& o) const {
    const int64_t count = plan.tensors[o.ids].dims[1];
    Tables(o.tables, count, o.width), Holds(o.ids, o.samples * count, ElementType::kI32);
    Holds(o.grad, o.samples * count * o.width), Holds(o.grad_scale, 1);
  }
  void operator()(const AdamWRows& o) const {
    (*this)(SgdRows{.grad = o.grad,
                    .ids = o.ids,
                    .grad_scale = o.grad_scale,
                    .tables = o.tables,
                    .samples = o.samples,
                    .width = o.width});
    for (size_t t = 0; t < o.tables.size(); ++t) {
      const int64_t elements = plan.tensors[o.tables[t]].elements();
      Holds(o.m[t], elements), Holds(o.v[t], elements);
      // One list of places serves all three.
      const auto place = [&](const std::vector<TensorId>& ids) {
        return plan.offsets[ids[t]] - plan.offsets[ids[0]];
      };
      EXPECT_EQ(place(o.m), place(o.tables));
      EXPECT_EQ(place(o.v), place(o.tables));
    }
  }
  void operator()(const InteractionForward& o) const {
    Elements({{o.x, o.batch * o.width},
              {o.e, o.batch * o.count * o.width},
              {o.y, o.batch * (o.width + o.count * (o.count + 1) / 2)}});
  }
  void operator()(const InteractionBackward& o) const {
    (*this)(InteractionForward{o.x, o.e, o.dy, o.batch, o.count, o.width});
    const ElementType type = plan.tensors[o.x].type;
    Holds(o.dx, o.batch * o.width, type), Holds(o.de, o.batch * o.count * o.width, type);
  }
  void operator()(const BinaryCrossEntropy& o) const {
    Holds(o.logits, o.rows), Holds(o.dlogits, o.rows), Holds(o.losses, o.rows);
    Holds(o.targets, o.rows, ElementType::kI32), Holds(o.correct, o.rows);
  }
  void operator()(const AttentionForward& o) const {
    const int64_t n = o.batch * o.time * o.heads * o.head_dim;
    const int64_t packed = o.batch * o.time * (o.heads + 2 * o.kv_heads) * o.head_dim;
    Elements({{o.qkv, packed}, {o.y, n}}), Holds(o.lse, o.batch * o.heads * o.time);
    Holds(o.lengths, o.batch, ElementType::kI32);
  }
  void operator()(const AttentionBackward& o) const {
    const int64_t n = o.batch * o.time * o.heads * o.head_dim;
    const int64_t packed = o.batch * o.time * (o.heads + 2 * o.kv_heads) * o.head_dim;
    Elements({{o.qkv, packed}, {o.dqkv, packed}, {o.y, n}, {o.dy, n}});
    Holds(o.lse, o.batch * o.heads * o.time), Holds(o.lengths, o.batch, ElementType::kI32);
  }
  void operator()(const CrossEntropy& o) const {
    Rows(o.logits, o.rows, o.classes), Rows(o.dlogits, o.rows, o.classes);
    if (o.dlogits != kNone) {
      EXPECT_EQ(plan.tensors[o.dlogits].row_stride, plan.tensors[o.logits].row_stride);
      EXPECT_EQ(plan.tensors[o.dlogits].type, plan.tensors[o.logits].type);
    }
    Holds(o.targets, o.rows, ElementType::kI32), Holds(o.losses, o.rows), Holds(o.correct, o.rows);
    Holds(o.z_losses, o.rows);
  }
  void operator()(const AddParts& o) const {
    for (const TensorId part : o.parts) {
      Elements({{o.y, o.rows * o.cols}, {part, o.rows * o.cols}});
    }
    Holds(o.bias, o.cols);
  }
  void operator()(const Arrive&) const {}
  void operator()(const AddRows& o) const {
    for (const TensorId part : o.made) {
      EXPECT_GE(plan.tensors[part].elements(), (o.first_row + o.rows) * o.cols);
    }
    for (const TensorId part : o.received) Holds(part, o.rows * o.cols);
    Holds(o.y, o.rows * o.cols), Holds(o.bias, o.cols);
  }
  void operator()(const TakeRows& o) const {
    EXPECT_GE(plan.tensors[o.x].elements(), (o.first_row + o.rows) * o.cols);
    Elements({{o.y, o.rows * o.cols}});
  }
  void operator()(const GatherRows& o) const {
    EXPECT_GE(plan.tensors[o.y].elements(), (o.first_row + o.rows) * o.cols);
    Elements({{o.x, o.rows * o.cols}});
  }
  void operator()(const Spread& o) const {
    ADD_FAILURE() << plan.tensors[o.x].name << " is copied";
  }
  void TokenRows(const std::vector<TensorId>& tables, int64_t first, int64_t vocab,
                 int64_t width) const {
    for (const TensorId table : tables) {
      EXPECT_EQ(plan.tensors[table].dims[1], width) << plan.tensors[table].name;
      first += plan.tensors[table].dims[0];
    }
    EXPECT_LE(first, vocab);
  }
  void operator()(const EmbeddingShardsForward& o) const {
    Holds(o.ids, o.places, ElementType::kI32), Holds(o.y, o.places * o.width);
    TokenRows(o.tables, o.first, o.vocab, o.width);
  }
  void operator()(const EmbeddingShardsBackward& o) const {
    Holds(o.ids, o.places, ElementType::kI32), Holds(o.dy, o.places * o.width);
    TokenRows(o.gradients, o.first, o.vocab, o.width);
  }
  void operator()(const CrossEntropyShard& o) const {
    Elements({{o.logits, o.rows * o.classes}});
    Holds(o.targets, o.rows, ElementType::kI32);
    Holds(o.statistics, o.rows * kernels::kClassStatistics);
  }
  void operator()(const CrossEntropyOfShards& o) const {
    for (const TensorId id : o.statistics) Holds(id, o.rows * kernels::kClassStatistics);
    Holds(o.targets, o.rows, ElementType::kI32), Holds(o.losses, o.rows), Holds(o.correct, o.rows);
    Holds(o.z_losses, o.rows), Holds(o.norms, o.rows * kernels::kRowNorm);
  }
  void operator()(const CrossEntropyShardGradient& o) const {
    Elements({{o.logits, o.rows * o.classes}, {o.dlogits, o.rows * o.classes}});
    Holds(o.targets, o.rows, ElementType::kI32), Holds(o.norms, o.rows * kernels::kRowNorm);
    EXPECT_LE(o.first + o.classes, o.all_classes);
  }
  void operator()(const CountTargets& o) const {
    Holds(o.targets, o.n, ElementType::kI32), Holds(o.count, 1, ElementType::kF64);
  }
  void operator()(const Sum& o) const { Holds(o.x, o.n), Holds(o.sum, 1, ElementType::kF64); }
  void Convolution(const ConvolutionShape& s, TensorId x, TensorId w, TensorId bias,
                   TensorId y) const {
    const int64_t height = (s.height + 2 * s.pad - s.kernel_height) / s.stride + 1;
    const int64_t width = (s.width + 2 * s.pad - s.kernel_width) / s.stride + 1;
    const ElementType type =
        Elements({{x, s.batch * s.height * s.width * s.in}, {y, s.batch * height * width * s.out}});
    EXPECT_EQ(type, computed);
    const bool gradient = plan.tensors[w].kind == TensorKind::kGradient;
    Holds(w, s.out * (s.in / s.groups) * s.kernel_height * s.kernel_width,
          gradient ? ElementType::kF32 : type);
    Holds(bias, s.out);
  }
  void operator()(const ConvolutionForward& o) const {
    Convolution(o.shape, o.x, o.w, o.bias, o.y);
  }
  void operator()(const ConvolutionBackwardData& o) const {
    Convolution(o.shape, o.dx, o.w, kNone, o.dy);
  }
  void operator()(const ConvolutionBackwardWeights& o) const {
    Convolution(o.shape, o.x, o.dw, o.dbias, o.dy);
  }
  void Pool(const PoolShape& s, TensorId x, TensorId y, TensorId index) const {
    const int64_t height = (s.height + 2 * s.pad - s.window) / s.stride + 1;
    const int64_t width = (s.width + 2 * s.pad - s.window) / s.stride + 1;
    Elements({{x, s.batch * s.height * s.width * s.channels},
              {y, s.batch * height * width * s.channels}});
    Holds(index, s.batch * height * width * s.channels, ElementType::kU8);
  }
  void operator()(const MaxPoolForward& o) const { Pool(o.shape, o.x, o.y, o.index); }
  void operator()(const MaxPoolBackward& o) const { Pool(o.shape, o.dx, o.dy, o.index); }
  void operator()(const MeanPoolForward& o) const {
    Elements({{o.x, o.batch * o.pixels * o.channels}, {o.y, o.batch * o.channels}});
  }
  void operator()(const MeanPoolBackward& o) const {
    Elements({{o.dx, o.batch * o.pixels * o.channels}, {o.dy, o.batch * o.channels}});
  }
  void operator()(const Transpose& o) const {
    Elements({{o.x, o.batch * o.rows * o.cols}, {o.y, o.batch * o.rows * o.cols}});
  }
  void operator()(const NormalizeImages& o) const {
    EXPECT_EQ(plan.tensors[o.x].kind, TensorKind::kInput);
    Holds(o.x, o.pixels * o.channels, ElementType::kU8);
    if (o.places != kNone) {
      Holds(o.places, o.pixels / o.height / o.width * kPlace, ElementType::kI32);
    }
    Elements({{o.y, o.pixels * o.channels}});
  }
  void operator()(const SquaredNorm& o) const {
    Begins(o.x, o.n), Holds(o.sum, 1, ElementType::kF64);
  }
  void operator()(const SquaredNormLeaves& o) const {
    const Tensor& x = plan.tensors[o.x];
    if (x.kind != TensorKind::kGradient) Begins(o.x, o.n);
    if (x.kind == TensorKind::kGradient) EXPECT_LE(o.n, x.elements()) << x.name;  // of a shard
    Begins(o.leaves, (o.n + kernels::kNormLeaf - 1) / kernels::kNormLeaf);
  }
  void operator()(const AddLeaves& o) const {
    Begins(o.leaves, o.count), Holds(o.sum, 1, ElementType::kF64);
  }
  void operator()(const ClipScale& o) const {
    Holds(o.sum, 1, ElementType::kF64), Holds(o.count, 1, ElementType::kF64), Holds(o.norm, 1);
    Holds(o.scale, 1), Holds(o.loss, 1, ElementType::kF64);
  }
  // Their gradient may be of 16 bits.
  void operator()(const SgdStep& o) const {
    Begins(o.w, o.n), Begins(o.grad, o.n), Begins(o.velocity, o.n), Holds(o.grad_scale, 1);
    Holds(o.state, 40, ElementType::kU8), Begins(o.copy, o.n);
  }
  void operator()(const AdamWStep& o) const {
    Begins(o.w, o.n), Begins(o.grad, o.n), Begins(o.m, o.n), Begins(o.v, o.n),
        Holds(o.grad_scale, 1);
    Holds(o.state, 40, ElementType::kU8), Begins(o.copy, o.n);
  }
  // A stored part of a parameter, or all of it.
  void HasPiece(TensorId id, int64_t offset, int64_t n) const {
    EXPECT_LE(offset + n, plan.tensors[id].elements()) << plan.tensors[id].name;
    EXPECT_TRUE(offset > 0 || n > 0) << plan.tensors[id].name;
  }
  void operator()(const LambStep& o) const {
    for (const TensorId id : {o.w, o.grad, o.m, o.v}) {
      o.adapt ? HasPiece(id, o.offset, o.n) : Begins(id, o.n);
      EXPECT_EQ(plan.tensors[id].type, ElementType::kF32) << plan.tensors[id].name;
    }
    Holds(o.grad_scale, 1), Holds(o.state, 40, ElementType::kU8);
  }
  void operator()(const MuonMomentum& o) const {
    EXPECT_EQ(plan.tensors[o.grad].type, ElementType::kF32) << plan.tensors[o.grad].name;
    HasPiece(o.grad, o.offset, o.n), HasPiece(o.velocity, o.offset, o.n), Holds(o.y, o.n);
    Holds(o.grad_scale, 1);
  }
  void operator()(const DivideByNorm& o) const {
    Holds(o.x, o.n), Holds(o.sum, 1, ElementType::kF64);
  }
  void operator()(const NewtonSchulz& o) const { Holds(o.x, o.n * o.n), Holds(o.y, o.n * o.n); }
  void operator()(const MuonStep& o) const {
    HasPiece(o.w, o.offset, o.n), Holds(o.x, o.n), Holds(o.state, 40, ElementType::kU8);
    Holds(o.grad_scale, 1);
  }
  void operator()(const EmaStep& o) const {
    Begins(o.average, o.n), Begins(o.w, o.n), Holds(o.state, 40, ElementType::kU8);
    Holds(o.grad_scale, 1);
  }
  void operator()(const CopyIfTaken& o) const {
    Begins(o.x, o.n), Begins(o.y, o.n), Holds(o.grad_scale, 1);
  }
  void operator()(const Fold& o) const {
    Holds(o.part, o.n, plan.tensors[o.part].type), Begins(o.total, o.n);
  }
};

void ExpectSizesHold(const Plan& plan, ElementType computed = ElementType::kF32) {
  for (const auto* ops : {&plan.copy, &plan.start, &plan.begin, &plan.zero, &plan.micro, &plan.norm,
                          &plan.end, &plan.move_buffers, &plan.evaluate_begin, &plan.evaluate}) {
    for (const Op& op : *ops) {
      const bool of_muon = ops == &plan.end && std::holds_alternative<Matmul>(op);
      std::visit(SizeChecker{plan, of_muon ? ElementType::kF32 : computed}, op);
    }
  }
  for (const std::vector<Op>& fold : plan.folds) {
    for (const Op& op : fold) std::visit(SizeChecker{plan, computed}, op);
  }
}

// In every precision.
void ExpectSizesHold(v1::JobSpec spec, const DataFacts& facts) {
  ExpectSizesHold(PlanOf(spec, facts));
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  ExpectSizesHold(PlanOf(spec, facts), ElementType::kBF16);
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  ExpectSizesHold(PlanOf(spec, facts), ElementType::kF16);
}

TEST(Shapes, OfAdaptersAgree) {
  const auto check = [](v1::JobSpec spec, const DataFacts& facts) {
    spec.mutable_fine_tune()->mutable_lora()->set_rank(2);
    spec.mutable_fine_tune()->mutable_lora()->set_dropout(0.1);
    spec.mutable_training()->set_micro_batch_size(2);
    spec.mutable_training()->set_ema_decay(0.9);
    ExpectSizesHold(spec, facts);
    spec.mutable_optimizer()->mutable_muon();
    ExpectSizesHold(spec, facts);
  };
  for (const v1::JobSpec& spec : {GptSpec(), LlamaSpec(), TokenLayersSpec()}) {
    check(spec, TokenFacts(11));
  }
  check(BertSpec(), DocumentFacts(11));
  check(VitSpec(), ImageFacts(4, 4, 1, 3));
  check(MlpSpec(), ImageFacts(4, 4, 1, 3));
  check(DlrmSpec(), ClickFacts(3, 2, 7));
}

// Optimizers with a state and a scratch of their own, groups and averages.
TEST(Shapes, OfEveryOptimizerAgree) {
  for (v1::JobSpec spec : {GptSpec(), LlamaSpec()}) {
    spec.mutable_training()->set_ema_decay(0.9);
    v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
    frozen.set_pattern(spec.model().has_gpt() ? "*.h.0.ln_*" : "*.0.*norm*");
    frozen.set_frozen(true);
    spec.mutable_optimizer()->mutable_lamb();
    ExpectSizesHold(spec, TokenFacts(11));
    spec.mutable_optimizer()->mutable_lamb()->set_always_adapt(true);
    ExpectSizesHold(spec, TokenFacts(11));
    spec.mutable_optimizer()->mutable_muon();
    ExpectSizesHold(spec, TokenFacts(11));
    spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    ExpectSizesHold(spec, TokenFacts(11));
  }
  v1::JobSpec spec = ConvnetSpec();
  spec.mutable_optimizer()->mutable_muon();
  ExpectSizesHold(spec, ImageFacts(28, 28, 1, 10));
}

TEST(Shapes, OfMlpAgree) { ExpectSizesHold(MlpSpec(), ImageFacts(5, 4, 3, 7)); }

TEST(Shapes, OfConvnetAgree) {
  v1::JobSpec spec = ConvnetSpec();
  v1::Convnet& convnet = *spec.mutable_model()->mutable_convnet();
  convnet.mutable_stages(0)->set_convolutions(2);
  convnet.mutable_stages(0)->set_kernel(5);
  convnet.add_stages()->set_channels(6);
  convnet.mutable_stages(1)->set_pool(3);
  convnet.set_dropout(0.5);
  spec.mutable_training()->set_micro_batch_size(3);
  spec.mutable_evaluation()->set_batch_size(11);
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.5);
  spec.mutable_optimizer()->set_clip_norm(1);
  ExpectSizesHold(spec, ImageFacts(17, 15, 3, 7));
}

TEST(Shapes, OfResnetAgree) {
  for (const v1::Resnet::Stem stem : {v1::Resnet::CIFAR, v1::Resnet::IMAGENET}) {
    for (const int depth : {18, 50}) {
      v1::JobSpec spec = ResnetSpec();
      spec.mutable_model()->mutable_resnet()->set_depth(depth);
      spec.mutable_model()->mutable_resnet()->set_stem(stem);
      spec.mutable_evaluation()->set_batch_size(11);
      ExpectSizesHold(spec, ImageFacts(35, 29, 3, 7));
    }
  }
}

TEST(Shapes, OfGptAgree) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
  spec.mutable_model()->mutable_gpt()->set_mlp_width(12);
  spec.mutable_evaluation()->set_batch_size(11);
  spec.mutable_training()->set_micro_batch_size(2);
  ExpectSizesHold(spec, TokenFacts(13));
  ExpectSizesHold(Gpt2Spec(), TokenFacts(50257));
}

TEST(Shapes, OfLlamaAgree) { ExpectSizesHold(LlamaSpec(), TokenFacts(13)); }

TEST(Shapes, OfBertAgree) {
  v1::JobSpec spec = BertSpec();
  spec.mutable_model()->mutable_bert()->set_dropout(0.1);
  spec.mutable_training()->set_micro_batch_size(2);
  spec.mutable_evaluation()->set_batch_size(11);
  ExpectSizesHold(spec, DocumentFacts(13));
}

TEST(Shapes, OfVitAgree) {
  v1::JobSpec spec = VitSpec();
  spec.mutable_model()->mutable_vit()->set_dropout(0.1);
  spec.mutable_training()->set_micro_batch_size(2);
  spec.mutable_evaluation()->set_batch_size(11);
  ExpectSizesHold(spec, ImageFacts(6, 4, 3, 7));
}

TEST(Shapes, OfMobilenetAgree) {
  for (const v1::Resnet::Stem stem : {v1::Resnet::CIFAR, v1::Resnet::IMAGENET}) {
    v1::JobSpec spec = MobilenetSpec();
    spec.mutable_model()->mutable_mobilenet()->set_stem(stem);
    spec.mutable_model()->mutable_mobilenet()->set_dropout(0.1);
    spec.mutable_evaluation()->set_batch_size(11);
    ExpectSizesHold(spec, ImageFacts(35, 29, 3, 7));
  }
}

TEST(Shapes, OfListsOfLayersAgree) {
  v1::JobSpec images = ImageLayersSpec(), tokens = TokenLayersSpec();
  for (v1::JobSpec* spec : {&images, &tokens}) {
    spec->mutable_training()->set_micro_batch_size(2);
    spec->mutable_evaluation()->set_batch_size(11);
  }
  ExpectSizesHold(images, ImageFacts(17, 15, 3, 7));
  ExpectSizesHold(tokens, TokenFacts(13));
}

TEST(Shapes, OfDlrmAgree) {
  v1::JobSpec spec = DlrmSpec();
  ExpectSizesHold(spec, ClickFacts(5, 3, 7));
  spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
  spec.mutable_training()->set_micro_batch_size(2);
  spec.mutable_evaluation()->set_batch_size(11);
  ExpectSizesHold(spec, ClickFacts(5, 3, 7));
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_clip_norm(1);
  ExpectSizesHold(spec, ClickFacts(5, 3, 7));
}

TEST(Shapes, OfEvaluationFollowItsOwnBatch) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_evaluation()->set_batch_size(11);
  const Plan plan = PlanOf(spec, TokenFacts(13));
  EXPECT_EQ(plan.evaluation_batch, 11);
  EXPECT_EQ(plan.tensors[plan.eval_input].dims, (std::vector<int64_t>{11, 5}));
  EXPECT_EQ(plan.tensors[plan.eval_target].elements(), 55);
  EXPECT_EQ(plan.tensors[plan.eval_logits].dims, (std::vector<int64_t>{55, 13}));
  EXPECT_EQ(plan.rows_per_sample, 5);
  EXPECT_TRUE(plan.tokens);
}

TEST(Shapes, OfShardsAgree) {
  for (v1::JobSpec spec : {GptSpec(), LlamaSpec(), BertSpec(), VitSpec()}) {
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_evaluation()->set_batch_size(11);
    for (const int32_t tensor : {2, 3, 4}) {
      spec.mutable_parallel()->set_tensor(tensor);
      ExpectSizesHold(spec, spec.model().has_vit()    ? ImageFacts(4, 6, 1, 3)
                            : spec.model().has_bert() ? DocumentFacts(11)
                                                      : TokenFacts(11));
    }
  }
}

TEST(Shapes, OfLogicalRanks) {
  for (v1::JobSpec spec : {GptSpec(), ResnetSpec()}) {
    spec.mutable_parallel()->set_logical_ranks(4);
    spec.mutable_training()->set_batch_size(16);
    spec.mutable_training()->set_micro_batch_size(2);
    ExpectSizesHold(spec, spec.model().has_gpt() ? TokenFacts(11) : ImageFacts(28, 28, 1, 10));
  }
}

}  // namespace
}  // namespace trainyard::plan
