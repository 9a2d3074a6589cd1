#include "executor/engine/lowering.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <variant>

#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

namespace k = ::trainyard::kernels;
namespace p = ::trainyard::plan;

k::DType DTypeOf(p::ElementType type) {
  switch (type) {
    case p::ElementType::kF32:
      return k::DType::kF32;
    case p::ElementType::kF64:
      return k::DType::kF64;
    case p::ElementType::kI32:
      return k::DType::kI32;
    case p::ElementType::kU8:
      return k::DType::kU8;
    case p::ElementType::kBF16:
      return k::DType::kBF16;
    case p::ElementType::kF16:
      return k::DType::kF16;
  }
  std::abort();
}

k::ActivationKind KindOf(p::ActivationKind kind) {
  switch (kind) {
    case p::ActivationKind::kRelu:
      return k::ActivationKind::kRelu;
    case p::ActivationKind::kGelu:
      return k::ActivationKind::kGelu;
    case p::ActivationKind::kGeluTanh:
      return k::ActivationKind::kGeluTanh;
    case p::ActivationKind::kRelu6:
      return k::ActivationKind::kRelu6;
  }
  std::abort();
}

k::ConvolutionShape ShapeOf(const p::ConvolutionShape& s) {
  return {.batch = s.batch,
          .height = s.height,
          .width = s.width,
          .in = s.in,
          .out = s.out,
          .kernel_height = s.kernel_height,
          .kernel_width = s.kernel_width,
          .stride = s.stride,
          .pad = s.pad,
          .groups = s.groups};
}

k::PoolShape ShapeOf(const p::PoolShape& s) {
  return {.batch = s.batch,
          .height = s.height,
          .width = s.width,
          .channels = s.channels,
          .window = s.window,
          .stride = s.stride,
          .pad = s.pad};
}

// One overload per op, each filling the kernel's struct of the same name.
struct Binder {
  const p::Plan& plan;
  char* arena;

  // The tensor from one of its elements on; its rows are dense.
  k::Buffer At(p::TensorId id, int64_t element = 0) const {
    if (id == p::kNone) return {};
    TY_CHECK(Stride(id) == 0, plan.tensors[id].name, ": its op takes no rows that lie apart");
    const p::ElementType type = plan.tensors[id].type;
    return {arena + plan.offsets[id] + element * p::SizeOf(type), DTypeOf(type)};
  }
  // The tensor, for an op that takes its Stride, too.
  k::Buffer Rows(p::TensorId id) const {
    if (id == p::kNone) return {};
    return {arena + plan.offsets[id], DTypeOf(plan.tensors[id].type)};
  }
  int64_t Stride(p::TensorId id) const { return plan.tensors[id].row_stride; }

  // Tables or what goes with them, by their places relative to the first.
  k::TableList ListOf(const std::vector<p::TensorId>& tables) const {
    k::TableList list{.count = static_cast<int64_t>(tables.size())};
    TY_CHECK(list.count <= k::TableList::kMost, list.count, " tables");
    for (size_t t = 0; t < tables.size(); ++t) {
      list.start[t] = (plan.offsets[tables[t]] - plan.offsets[tables[0]]) / 4;
      list.rows[t] = plan.tensors[tables[t]].dims[0];
    }
    return list;
  }

  k::ActivationForward Bind(const p::ActivationForward& o) const {
    return {.kind = KindOf(o.kind), .x = At(o.x), .y = At(o.y), .n = o.n};
  }
  k::ActivationBackward Bind(const p::ActivationBackward& o) const {
    return {.kind = KindOf(o.kind), .x = At(o.x), .dy = At(o.dy), .dx = At(o.dx), .n = o.n};
  }
  k::Add Bind(const p::Add& o) const {
    return {.a = At(o.a), .b = At(o.b), .y = At(o.y), .n = o.n};
  }
  k::AddBias Bind(const p::AddBias& o) const {
    return {.x = At(o.x), .bias = At(o.bias), .y = At(o.y), .rows = o.rows, .cols = o.cols};
  }
  k::AddProduct Bind(const p::AddProduct& o) const {
    return {.base = At(o.base),
            .a = At(o.a),
            .b = At(o.b),
            .y = At(o.y),
            .rows = o.rows,
            .cols = o.cols,
            .first = o.first,
            .n = o.n,
            .k = o.k,
            .scale = o.scale};
  }
  k::AdamWRows Bind(const p::AdamWRows& o) const {
    return {.w = At(o.tables[0]),
            .grad = At(o.grad),
            .ids = At(o.ids),
            .m = At(o.m[0]),
            .v = At(o.v[0]),
            .grad_scale = At(o.grad_scale),
            .state = At(o.state).data,
            .tables = ListOf(o.tables),
            .samples = o.samples,
            .width = o.width,
            .beta1 = o.beta1,
            .beta2 = o.beta2,
            .epsilon = o.epsilon,
            .weight_decay = o.weight_decay,
            .learning_rate_scale = o.learning_rate_scale};
  }
  k::AdamWStep Bind(const p::AdamWStep& o) const {
    return {.w = At(o.w),
            .grad = At(o.grad),
            .m = At(o.m),
            .v = At(o.v),
            .grad_scale = At(o.grad_scale),
            .state = At(o.state).data,
            .copy = At(o.copy),
            .n = o.n,
            .beta1 = o.beta1,
            .beta2 = o.beta2,
            .epsilon = o.epsilon,
            .weight_decay = o.weight_decay,
            .learning_rate_scale = o.learning_rate_scale};
  }
  k::AttentionForward Bind(const p::AttentionForward& o) const {
    return {.qkv = At(o.qkv),
            .y = At(o.y),
            .lse = At(o.lse),
            .batch = o.batch,
            .time = o.time,
            .heads = o.heads,
            .kv_heads = o.kv_heads,
            .head_dim = o.head_dim,
            .scale = o.scale,
            .causal = o.causal,
            .lengths = At(o.lengths)};
  }
  k::AttentionBackward Bind(const p::AttentionBackward& o) const {
    return {.dy = At(o.dy),
            .qkv = At(o.qkv),
            .y = At(o.y),
            .lse = At(o.lse),
            .dqkv = At(o.dqkv),
            .batch = o.batch,
            .time = o.time,
            .heads = o.heads,
            .kv_heads = o.kv_heads,
            .head_dim = o.head_dim,
            .scale = o.scale,
            .causal = o.causal,
            .lengths = At(o.lengths)};
  }
  k::BinaryCrossEntropy Bind(const p::BinaryCrossEntropy& o) const {
    return {.logits = At(o.logits),
            .targets = At(o.targets),
            .losses = At(o.losses),
            .correct = At(o.correct),
            .dlogits = At(o.dlogits),
            .state = At(o.state).data,
            .rows = o.rows,
            .scale = o.scale};
  }
  k::BatchNormForward Bind(const p::BatchNormForward& o) const {
    return {.x = At(o.x),
            .gamma = At(o.gamma),
            .beta = At(o.beta),
            .residual = At(o.residual),
            .y = At(o.y),
            .mean = At(o.mean),
            .rstd = At(o.rstd),
            .running_mean = At(o.running_mean),
            .running_var = At(o.running_var),
            .rows = o.rows,
            .cols = o.cols,
            .epsilon = o.epsilon,
            .momentum = o.momentum,
            .relu = o.relu,
            .again = o.again};
  }
  k::BatchNormInference Bind(const p::BatchNormInference& o) const {
    return {.x = At(o.x),
            .gamma = At(o.gamma),
            .beta = At(o.beta),
            .residual = At(o.residual),
            .running_mean = At(o.running_mean),
            .running_var = At(o.running_var),
            .y = At(o.y),
            .rows = o.rows,
            .cols = o.cols,
            .epsilon = o.epsilon,
            .relu = o.relu};
  }
  k::BatchNormBackward Bind(const p::BatchNormBackward& o) const {
    return {.dy = At(o.dy),
            .x = At(o.x),
            .y = At(o.y),
            .gamma = At(o.gamma),
            .mean = At(o.mean),
            .rstd = At(o.rstd),
            .dx = At(o.dx),
            .dresidual = At(o.dresidual),
            .dgamma = At(o.dgamma),
            .dbeta = At(o.dbeta),
            .rows = o.rows,
            .cols = o.cols,
            .accumulate_params = o.accumulate_params};
  }
  k::Cast Bind(const p::Cast& o) const { return {.x = At(o.x), .y = At(o.y), .n = o.n}; }
  k::ClipScale Bind(const p::ClipScale& o) const {
    return {.sum = At(o.sum),
            .count = At(o.count),
            .loss = At(o.loss),
            .norm = At(o.norm),
            .scale = At(o.scale),
            .state = At(o.state).data,
            .rows = o.rows,
            .max_norm = o.max_norm};
  }
  k::ColumnSum Bind(const p::ColumnSum& o) const {
    return {.x = Rows(o.x),
            .y = At(o.y),
            .rows = o.rows,
            .cols = o.cols,
            .accumulate = o.accumulate,
            .row_stride = Stride(o.x)};
  }
  k::Concat Bind(const p::Concat& o) const {
    return {.a = At(o.a),
            .b = At(o.b),
            .y = At(o.y),
            .rows = o.rows,
            .a_cols = o.a_cols,
            .b_cols = o.b_cols,
            .repeat_a = o.repeat_a};
  }
  k::ConvolutionForward Bind(const p::ConvolutionForward& o) const {
    return {
        .x = At(o.x), .w = At(o.w), .bias = At(o.bias), .y = At(o.y), .shape = ShapeOf(o.shape)};
  }
  k::ConvolutionBackwardData Bind(const p::ConvolutionBackwardData& o) const {
    return {.dy = At(o.dy), .w = At(o.w), .dx = At(o.dx), .shape = ShapeOf(o.shape)};
  }
  k::ConvolutionBackwardWeights Bind(const p::ConvolutionBackwardWeights& o) const {
    return {.x = At(o.x),
            .dy = At(o.dy),
            .dw = At(o.dw),
            .dbias = At(o.dbias),
            .shape = ShapeOf(o.shape),
            .accumulate = o.accumulate};
  }
  k::CopyIfTaken Bind(const p::CopyIfTaken& o) const {
    return {.x = At(o.x), .y = At(o.y), .grad_scale = At(o.grad_scale), .n = o.n};
  }
  k::CountTargets Bind(const p::CountTargets& o) const {
    return {.targets = At(o.targets), .count = At(o.count), .n = o.n, .accumulate = o.accumulate};
  }
  k::CrossEntropy Bind(const p::CrossEntropy& o) const {
    TY_CHECK(o.dlogits == p::kNone || Stride(o.dlogits) == Stride(o.logits),
             plan.tensors[o.logits].name, " lies otherwise than its gradient");
    return {.logits = Rows(o.logits),
            .targets = At(o.targets),
            .losses = At(o.losses),
            .z_losses = At(o.z_losses),
            .correct = At(o.correct),
            .dlogits = Rows(o.dlogits),
            .state = At(o.state).data,
            .rows = o.rows,
            .classes = o.classes,
            .row_stride = Stride(o.logits),
            .scale = o.scale,
            .smoothing = o.smoothing,
            .z_loss = o.z_loss};
  }
  k::DivideByNorm Bind(const p::DivideByNorm& o) const {
    return {.x = At(o.x), .sum = At(o.sum), .n = o.n, .epsilon = o.epsilon};
  }
  k::Dropout Bind(const p::Dropout& o) const {
    return {.x = At(o.x),
            .y = At(o.y),
            .state = At(o.state).data,
            .stream = o.stream,
            .samples = o.samples,
            .per_sample = o.per_sample,
            .p = o.p};
  }
  k::EmaStep Bind(const p::EmaStep& o) const {
    return {.average = At(o.average),
            .w = At(o.w),
            .grad_scale = At(o.grad_scale),
            .state = At(o.state).data,
            .n = o.n,
            .decay = o.decay,
            .warmup = o.warmup};
  }
  k::EmbeddingForward Bind(const p::EmbeddingForward& o) const {
    return {.ids = At(o.ids),
            .tokens = At(o.tokens),
            .positions = At(o.positions),
            .y = At(o.y),
            .batch = o.batch,
            .time = o.time,
            .width = o.width,
            .vocab = o.vocab};
  }
  k::EmbeddingBackward Bind(const p::EmbeddingBackward& o) const {
    return {.dy = At(o.dy),
            .ids = At(o.ids),
            .dtokens = At(o.dtokens),
            .dpositions = At(o.dpositions),
            .batch = o.batch,
            .time = o.time,
            .width = o.width,
            .vocab = o.vocab};
  }
  k::EmbeddingTablesForward Bind(const p::EmbeddingTablesForward& o) const {
    return {.ids = At(o.ids),
            .weights = At(o.tables[0]),
            .y = At(o.y),
            .tables = ListOf(o.tables),
            .batch = o.batch,
            .width = o.width};
  }
  k::EmbeddingTablesBackward Bind(const p::EmbeddingTablesBackward& o) const {
    return {.dy = At(o.dy),
            .ids = At(o.ids),
            .gradients = At(o.gradients[0]),
            .tables = ListOf(o.gradients),
            .batch = o.batch,
            .width = o.width};
  }
  k::InteractionForward Bind(const p::InteractionForward& o) const {
    return {.x = At(o.x),
            .e = At(o.e),
            .y = At(o.y),
            .batch = o.batch,
            .count = o.count,
            .width = o.width};
  }
  k::InteractionBackward Bind(const p::InteractionBackward& o) const {
    return {.dy = At(o.dy),
            .x = At(o.x),
            .e = At(o.e),
            .dx = At(o.dx),
            .de = At(o.de),
            .batch = o.batch,
            .count = o.count,
            .width = o.width};
  }
  k::KeepRows Bind(const p::KeepRows& o) const {
    return {.dy = At(o.dy),
            .ids = At(o.ids),
            .kept_dy = At(o.kept_dy),
            .kept_ids = At(o.kept_ids),
            .state = At(o.state).data,
            .samples = o.samples,
            .batch = o.batch,
            .count = o.count,
            .width = o.width};
  }
  k::LambStep Bind(const p::LambStep& o) const {
    return {.w = At(o.w),
            .grad = At(o.grad),
            .m = At(o.m),
            .v = At(o.v),
            .grad_scale = At(o.grad_scale),
            .state = At(o.state).data,
            .offset = o.offset,
            .n = o.n,
            .beta1 = o.beta1,
            .beta2 = o.beta2,
            .epsilon = o.epsilon,
            .weight_decay = o.weight_decay,
            .learning_rate_scale = o.learning_rate_scale,
            .adapt = o.adapt};
  }
  k::LayerNormForward Bind(const p::LayerNormForward& o) const {
    return {.x = At(o.x),
            .residual = At(o.residual),
            .sum = At(o.sum),
            .gamma = At(o.gamma),
            .beta = At(o.beta),
            .y = At(o.y),
            .mean = At(o.mean),
            .rstd = At(o.rstd),
            .rows = o.rows,
            .cols = o.cols,
            .epsilon = o.epsilon};
  }
  k::LayerNormBackward Bind(const p::LayerNormBackward& o) const {
    return {.dy = At(o.dy),
            .x = At(o.x),
            .gamma = At(o.gamma),
            .mean = At(o.mean),
            .rstd = At(o.rstd),
            .dx = At(o.dx),
            .dgamma = At(o.dgamma),
            .dbeta = At(o.dbeta),
            .rows = o.rows,
            .cols = o.cols,
            .accumulate_dx = o.accumulate_dx,
            .accumulate_params = o.accumulate_params};
  }
  k::Matmul Bind(const p::Matmul& o) const {
    return {.a = o.a_cols == 0 ? Rows(o.a) : At(o.a, o.a_first),
            .b = At(o.b),
            .bias = At(o.bias),
            .c = Rows(o.c),
            .m = o.m,
            .n = o.n,
            .k = o.k,
            .transpose_a = o.transpose_a,
            .transpose_b = o.transpose_b,
            .accumulate = o.accumulate,
            .scale = o.scale,
            .a_stride = o.a_cols == 0 ? Stride(o.a) : o.a_cols,
            .c_stride = Stride(o.c)};
  }
  k::MaxPoolForward Bind(const p::MaxPoolForward& o) const {
    return {.x = At(o.x), .y = At(o.y), .index = At(o.index), .shape = ShapeOf(o.shape)};
  }
  k::MaxPoolBackward Bind(const p::MaxPoolBackward& o) const {
    return {.dy = At(o.dy), .index = At(o.index), .dx = At(o.dx), .shape = ShapeOf(o.shape)};
  }
  k::MeanPoolForward Bind(const p::MeanPoolForward& o) const {
    return {
        .x = At(o.x), .y = At(o.y), .batch = o.batch, .pixels = o.pixels, .channels = o.channels};
  }
  k::MeanPoolBackward Bind(const p::MeanPoolBackward& o) const {
    return {.dy = At(o.dy),
            .dx = At(o.dx),
            .batch = o.batch,
            .pixels = o.pixels,
            .channels = o.channels};
  }
  k::MuonMomentum Bind(const p::MuonMomentum& o) const {
    return {.grad = At(o.grad),
            .velocity = At(o.velocity),
            .y = At(o.y),
            .grad_scale = At(o.grad_scale),
            .offset = o.offset,
            .n = o.n,
            .momentum = o.momentum,
            .nesterov = o.nesterov};
  }
  k::MuonStep Bind(const p::MuonStep& o) const {
    return {.w = At(o.w),
            .x = At(o.x),
            .grad_scale = At(o.grad_scale),
            .state = At(o.state).data,
            .offset = o.offset,
            .n = o.n,
            .scale = o.scale,
            .weight_decay = o.weight_decay,
            .learning_rate_scale = o.learning_rate_scale};
  }
  k::NewtonSchulz Bind(const p::NewtonSchulz& o) const {
    return {.x = At(o.x), .y = At(o.y), .n = o.n, .a = o.a, .b = o.b, .c = o.c};
  }
  k::NormalizeImages Bind(const p::NormalizeImages& o) const {
    k::NormalizeImages op = {.x = At(o.x),
                             .places = At(o.places),
                             .y = At(o.y),
                             .pixels = o.pixels,
                             .channels = o.channels,
                             .height = o.height,
                             .width = o.width};
    static_assert(p::kPlace == k::NormalizeImages::kPlace);
    TY_CHECK(std::max(o.mean.size(), o.std.size()) <= std::size(op.mean), o.channels, " channels");
    std::copy(o.mean.begin(), o.mean.end(), op.mean);
    std::copy(o.std.begin(), o.std.end(), op.std);
    return op;
  }
  k::Rotary Bind(const p::Rotary& o) const {
    return {.x = At(o.x),
            .y = At(o.y),
            .batch = o.batch,
            .time = o.time,
            .heads = o.heads,
            .rotated = o.rotated,
            .head_dim = o.head_dim,
            .theta = o.theta,
            .inverse = o.inverse};
  }
  k::MergeRows Bind(const p::MergeRows& o) const {
    return {.grad = At(o.grad),
            .ids = At(o.ids),
            .samples = o.samples,
            .count = o.count,
            .width = o.width};
  }
  k::SgdRows Bind(const p::SgdRows& o) const {
    return {.w = At(o.tables[0]),
            .grad = At(o.grad),
            .ids = At(o.ids),
            .grad_scale = At(o.grad_scale),
            .state = At(o.state).data,
            .tables = ListOf(o.tables),
            .samples = o.samples,
            .width = o.width,
            .learning_rate_scale = o.learning_rate_scale};
  }
  k::SgdStep Bind(const p::SgdStep& o) const {
    return {.w = At(o.w),
            .grad = At(o.grad),
            .velocity = At(o.velocity),
            .grad_scale = At(o.grad_scale),
            .state = At(o.state).data,
            .copy = At(o.copy),
            .n = o.n,
            .momentum = o.momentum,
            .weight_decay = o.weight_decay,
            .learning_rate_scale = o.learning_rate_scale,
            .nesterov = o.nesterov};
  }
  k::Split Bind(const p::Split& o) const {
    return {.x = At(o.x),
            .a = At(o.a),
            .b = At(o.b),
            .rows = o.rows,
            .a_cols = o.a_cols,
            .b_cols = o.b_cols};
  }
  k::SquaredNorm Bind(const p::SquaredNorm& o) const {
    return {.x = At(o.x), .sum = At(o.sum), .n = o.n, .accumulate = o.accumulate};
  }
  k::Sum Bind(const p::Sum& o) const {
    return {.x = At(o.x), .sum = At(o.sum), .n = o.n, .accumulate = o.accumulate};
  }
  k::SwiGluForward Bind(const p::SwiGluForward& o) const {
    return {.x = At(o.x), .y = At(o.y), .rows = o.rows, .cols = o.cols};
  }
  k::SwiGluBackward Bind(const p::SwiGluBackward& o) const {
    return {.x = At(o.x), .dy = At(o.dy), .dx = At(o.dx), .rows = o.rows, .cols = o.cols};
  }
  k::Transpose Bind(const p::Transpose& o) const {
    return {.x = At(o.x), .y = At(o.y), .batch = o.batch, .rows = o.rows, .cols = o.cols};
  }
  k::Zero Bind(const p::Zero& o) const { return {.x = At(o.x), .n = o.n}; }
};

}  // namespace

absl::StatusOr<kernels::Kernels> Lower(kernels::Device& device, const plan::Plan& plan, void* arena,
                                       const std::vector<plan::Op>& ops) {
  const Binder binder{plan, static_cast<char*>(arena)};
  kernels::Kernels kernels;
  kernels.reserve(ops.size());
  for (const plan::Op& op : ops) {
    absl::StatusOr<kernels::Kernel> kernel =
        std::visit([&](const auto& o) { return device.Prepare(binder.Bind(o)); }, op);
    if (!kernel.ok()) {
      return Annotate(kernel.status(), absl::StrCat("op ", kernels.size(), " of the plan"));
    }
    kernels.push_back(*std::move(kernel));
  }
  return kernels;
}

}  // namespace trainyard::engine
