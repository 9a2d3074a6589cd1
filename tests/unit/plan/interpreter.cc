#include "tests/unit/plan/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "storage/base/status.h"
#include "tests/reference/attention.h"
#include "tests/reference/batch_norm.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/image.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/linear.h"
#include "tests/reference/llama.h"
#include "tests/reference/optimizer.h"
#include "tests/reference/recommender.h"
#include "tests/reference/soft_cap.h"

namespace trainyard::plan {

using reference::Vec;

namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

kernels::ActivationKind KindOf(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kRelu:
      return kernels::ActivationKind::kRelu;
    case ActivationKind::kGelu:
      return kernels::ActivationKind::kGelu;
    case ActivationKind::kGeluTanh:
      return kernels::ActivationKind::kGeluTanh;
    case ActivationKind::kRelu6:
      return kernels::ActivationKind::kRelu6;
  }
  std::abort();
}

template <typename Attention>
reference::AttentionShape ShapeOf(const Attention& o, std::vector<int32_t> lengths) {
  return {.batch = o.batch,
          .time = o.time,
          .heads = o.heads,
          .head_dim = o.head_dim,
          .scale = o.scale,
          .causal = o.causal,
          .group = o.heads / o.kv_heads,
          .lengths = std::move(lengths)};
}

std::vector<uint8_t> ToBytes(const Vec& v) { return std::vector<uint8_t>(v.begin(), v.end()); }
Vec ToVec(const std::vector<uint8_t>& v) { return Vec(v.begin(), v.end()); }

}  // namespace

Interpreter::Interpreter(const Plan& plan) : plan_(plan), cells_(plan.arena_bytes, 0) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorKind kind = plan.tensors[i].kind;
    if (kind != TensorKind::kActivation && kind != TensorKind::kInput) continue;
    const auto at = cells_.begin() + plan.offsets[i];
    std::fill(at, at + plan.tensors[i].bytes(), kNothing);
  }
}

int64_t Interpreter::CellOf(TensorId id, int64_t i) const {
  const Tensor& tensor = plan_.tensors[id];
  if (tensor.row_stride > 0)
    i = i / tensor.dims.back() * tensor.row_stride + i % tensor.dims.back();
  return plan_.offsets[id] + i * SizeOf(tensor.type);
}

Vec Interpreter::Read(TensorId id, int64_t n) const {
  if (id == kNone) return {};
  const Tensor& tensor = plan_.tensors[id];
  if (n < 0) n = tensor.elements();
  Vec values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = cells_[CellOf(id, i)];
  return values;
}

void Interpreter::Write(TensorId id, const Vec& values) {
  const int64_t size = SizeOf(plan_.tensors[id].type);
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t at = CellOf(id, static_cast<int64_t>(i));
    for (int64_t b = 1; b < size; ++b) cells_[at + b] = kNothing;
    cells_[at] = values[i];
  }
}

std::vector<int32_t> Interpreter::ReadIds(TensorId id) const {
  const Vec values = Read(id);
  return std::vector<int32_t>(values.begin(), values.end());
}

struct Interpreter::Executor {
  Interpreter& m;

  Vec R(TensorId id, int64_t n = -1) const { return m.Read(id, n); }

  void Put(TensorId id, Vec values, bool accumulate = false) const {
    if (id == kNone) return;
    if (accumulate) {
      const Vec old = m.Read(id, static_cast<int64_t>(values.size()));
      for (size_t i = 0; i < values.size(); ++i) values[i] += old[i];
    }
    m.Write(id, values);
  }

  // `width` columns of `x` from `first` on, whose rows have `cols`.
  static Vec Columns(const Vec& x, int64_t cols, int64_t first, int64_t width) {
    Vec columns;
    for (auto row = x.begin(); row < x.end(); row += cols) {
      columns.insert(columns.end(), row + first, row + first + width);
    }
    return columns;
  }

  void operator()(const Matmul& o) const {
    const int64_t width = o.transpose_a ? o.m : o.k;
    const Vec a = o.a_cols > 0 ? Columns(R(o.a), o.a_cols, o.a_first, width) : R(o.a);
    Vec c = reference::Matmul(a, R(o.b), o.m, o.n, o.k, o.transpose_a, o.transpose_b);
    const Vec bias = R(o.bias);
    for (size_t i = 0; i < c.size(); ++i) {
      c[i] = o.scale * c[i] + (bias.empty() ? 0 : bias[i % o.n]);
    }
    Put(o.c, c, o.accumulate);
  }
  void operator()(const AddProduct& o) const {
    const Vec product = reference::Matmul(R(o.a), R(o.b), o.rows, o.n, o.k, false, true);
    Vec y = R(o.base);
    for (int64_t i = 0; i < o.rows * o.n; ++i) {
      y[i / o.n * o.cols + o.first + i % o.n] += o.scale * product[i];
    }
    Put(o.y, y);
  }
  void operator()(const ColumnSum& o) const {
    Put(o.y, reference::ColumnSum(R(o.x), o.rows, o.cols), o.accumulate);
  }
  void operator()(const ActivationForward& o) const {
    Vec x = R(o.x);
    for (double& v : x) v = reference::Activation(KindOf(o.kind), v);
    Put(o.y, x);
  }
  void operator()(const ActivationBackward& o) const {
    const Vec x = R(o.x);
    Vec dx = R(o.dy);
    for (size_t i = 0; i < dx.size(); ++i)
      dx[i] *= reference::ActivationSlope(KindOf(o.kind), x[i]);
    Put(o.dx, dx);
  }
  void operator()(const Add& o) const {
    const Vec a = R(o.a);
    Vec y = R(o.b);
    for (size_t i = 0; i < y.size(); ++i) y[i] += a[i];
    Put(o.y, y);
  }
  void operator()(const Cast& o) const { Put(o.y, R(o.x, o.n)); }
  void operator()(const AddBias& o) const {
    const Vec bias = R(o.bias, o.cols);
    Vec y = R(o.x);
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % o.cols];
    Put(o.y, y);
  }
  void operator()(const Concat& o) const {
    const Vec a = R(o.a), b = R(o.b);
    Vec y;
    for (int64_t r = 0; r < o.rows; ++r) {
      const int64_t of_a = o.repeat_a ? 0 : r;
      for (int64_t c = 0; c < o.a_cols; ++c) y.push_back(a.empty() ? 0 : a[of_a * o.a_cols + c]);
      for (int64_t c = 0; c < o.b_cols; ++c) y.push_back(b.empty() ? 0 : b[r * o.b_cols + c]);
    }
    Put(o.y, y);
  }
  void operator()(const Split& o) const {
    const Vec x = R(o.x);
    Vec a, b;
    for (size_t i = 0; i < x.size(); ++i) {
      const bool left = static_cast<int64_t>(i) % (o.a_cols + o.b_cols) < o.a_cols;
      (left ? a : b).push_back(x[i]);
    }
    Put(o.a, a);
    Put(o.b, b);
  }
  void operator()(const Zero& o) const { Put(o.x, Vec(o.n, 0)); }
  void operator()(const Dropout& o) const {
    const int64_t each = o.cols > 0 ? o.per_sample / o.cols * o.all_cols : o.per_sample;
    Vec keep = reference::DropoutKeep(m.state.seed, o.stream, m.state.step, m.state.first_sample,
                                      o.samples, each, o.p);
    if (o.cols > 0) keep = Columns(keep, o.all_cols, o.first_col, o.cols);
    keep.erase(keep.begin(), keep.begin() + o.first_row * o.cols);
    Vec y = R(o.x);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= keep[i] / (1.0 - o.p);
    Put(o.y, y);
  }
  void operator()(const Rotary& o) const {
    Put(o.y, reference::Rotary(R(o.x), {o.batch, o.time, o.heads, o.rotated, o.head_dim, o.theta},
                               o.inverse));
  }
  void operator()(const SoftCapForward& o) const {
    Vec y = R(o.x);
    for (double& v : y) v = reference::SoftCap(v, o.cap);
    Put(o.y, y);
  }
  void operator()(const SoftCapBackward& o) const {
    Vec dx = R(o.dy);
    const Vec y = R(o.y);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] *= 1 - y[i] * y[i] / (o.cap * o.cap);
    Put(o.dx, dx);
  }
  void operator()(const SwiGluForward& o) const {
    Put(o.y, reference::SwiGlu(R(o.x), o.rows, o.cols));
  }
  void operator()(const SwiGluBackward& o) const {
    Put(o.dx, reference::SwiGluBackward(R(o.x), R(o.dy), o.rows, o.cols));
  }
  void operator()(const LayerNormForward& o) const {
    Vec x = R(o.x);
    const Vec residual = R(o.residual);
    for (size_t i = 0; i < residual.size(); ++i) x[i] += residual[i];
    const auto r =
        reference::LayerNorm(x, R(o.gamma), R(o.beta), o.rows, o.cols, o.epsilon, o.mean != kNone);
    Put(o.sum, x);
    Put(o.y, r.y);
    Put(o.mean, r.mean);
    Put(o.rstd, r.rstd);
  }
  void operator()(const LayerNormBackward& o) const {
    const auto r = reference::LayerNormBackward(R(o.dy), R(o.x), R(o.gamma), o.rows, o.cols, 1e-5f,
                                                o.mean != kNone);
    Put(o.dx, r.dx, o.accumulate_dx);
    Put(o.dgamma, r.dgamma, o.accumulate_params);
    Put(o.dbeta, r.dbeta, o.accumulate_params);
  }
  void operator()(const BatchNormForward& o) const {
    if (o.again) {
      Vec variance = R(o.rstd);
      for (double& v : variance) v = 1 / (v * v) - o.epsilon;
      return Put(o.y, reference::BatchNormInference(R(o.x), R(o.gamma), R(o.beta), R(o.residual),
                                                    R(o.mean), variance,
                                                    {o.rows, o.cols, o.epsilon, o.relu}));
    }
    const auto r = reference::BatchNorm(R(o.x), R(o.gamma), R(o.beta), R(o.residual),
                                        {o.rows, o.cols, o.epsilon, o.relu});
    Put(o.y, r.y);
    Put(o.mean, r.mean);
    Put(o.rstd, r.rstd);
    Put(o.running_mean, reference::Moved(R(o.running_mean), r.mean, o.momentum));
    Put(o.running_var,
        reference::Moved(R(o.running_var), reference::Unbiased(r.variance, o.rows), o.momentum));
  }
  void operator()(const BatchNormInference& o) const {
    Put(o.y, reference::BatchNormInference(R(o.x), R(o.gamma), R(o.beta), R(o.residual),
                                           R(o.running_mean), R(o.running_var),
                                           {o.rows, o.cols, o.epsilon, o.relu}));
  }
  void operator()(const BatchNormBackward& o) const {
    const auto r = reference::BatchNormBackward(R(o.dy), R(o.x), R(o.y), R(o.gamma),
                                                {o.rows, o.cols, 1e-5f, o.y != kNone});
    Put(o.dx, r.dx);
    Put(o.dresidual, r.dresidual);
    Put(o.dgamma, r.dgamma, o.accumulate_params);
    Put(o.dbeta, r.dbeta, o.accumulate_params);
  }
  void operator()(const EmbeddingForward& o) const {
    Put(o.y, reference::Embedding(m.ReadIds(o.ids), R(o.tokens), R(o.positions), o.batch, o.time,
                                  o.width));
  }
  void operator()(const EmbeddingBackward& o) const {
    const auto r =
        reference::EmbeddingBackward(m.ReadIds(o.ids), R(o.dy), o.batch, o.time, o.width, o.vocab);
    Put(o.dtokens, r.dtokens, true);
    Put(o.dpositions, r.dpositions, true);
  }
  void operator()(const EmbeddingTablesForward& o) const {
    std::vector<Vec> tables;
    for (const TensorId id : o.tables) tables.push_back(R(id));
    Put(o.y, reference::EmbeddingTables(m.ReadIds(o.ids), tables, o.batch, o.width));
  }
  void operator()(const EmbeddingTablesBackward& o) const {
    std::vector<int64_t> rows;
    for (const TensorId id : o.gradients) rows.push_back(m.plan_.tensors[id].dims[0]);
    const auto g =
        reference::EmbeddingTablesBackward(m.ReadIds(o.ids), R(o.dy), rows, o.batch, o.width);
    for (size_t t = 0; t < g.size(); ++t) Put(o.gradients[t], g[t], true);
  }
  void operator()(const KeepRows& o) const {
    const int64_t at = m.state.first_sample % o.samples * o.count;
    const auto put = [&](TensorId to, const Vec& part, int64_t first) {
      Vec all = R(to);
      std::copy(part.begin(), part.end(), all.begin() + first);
      Put(to, all);
    };
    put(o.kept_ids, R(o.ids), at);
    put(o.kept_dy, R(o.dy), at * o.width);
  }
  void operator()(const MergeRows& o) const {
    std::vector<int32_t> ids = m.ReadIds(o.ids);
    Vec grad = R(o.grad);
    reference::MergeRows(ids, grad, o.samples, o.count, o.width);
    Put(o.ids, Vec(ids.begin(), ids.end()));
    Put(o.grad, grad);
  }
  // Calls step(grad, i) for each row of each table with its place: elements i to i + width.
  template <typename O, typename F>
  void ForEachRow(const O& o, F step) const {
    const std::vector<int32_t> ids = m.ReadIds(o.ids);
    const Vec grad = R(o.grad);
    for (size_t p = 0; p < ids.size(); ++p) {
      if (ids[p] < 0) continue;
      const auto at = grad.begin() + static_cast<int64_t>(p) * o.width;
      step(Vec(at, at + o.width), p % o.tables.size(), ids[p] * o.width);
    }
  }
  Vec Row(TensorId id, int64_t at, int64_t width) const {
    const Vec all = R(id);
    return Vec(all.begin() + at, all.begin() + at + width);
  }
  void PutRow(TensorId id, int64_t at, const Vec& row) const {
    Vec all = R(id);
    std::copy(row.begin(), row.end(), all.begin() + at);
    Put(id, all);
  }
  void operator()(const SgdRows& o) const {
    ForEachRow(o, [&](const Vec& grad, size_t t, int64_t at) {
      reference::SgdState s{.w = Row(o.tables[t], at, o.width), .velocity = Vec(o.width, 0)};
      reference::SgdStep(grad, ScaleOf(o.grad_scale), {.lr = Rate(o)}, m.state.updates, s);
      PutRow(o.tables[t], at, s.w);
    });
  }
  void operator()(const AdamWRows& o) const {
    ForEachRow(o, [&](const Vec& grad, size_t t, int64_t at) {
      reference::AdamWState s{.w = Row(o.tables[t], at, o.width),
                              .m = Row(o.m[t], at, o.width),
                              .v = Row(o.v[t], at, o.width)};
      reference::AdamWStep(grad, ScaleOf(o.grad_scale),
                           {.lr = Rate(o),
                            .beta1 = o.beta1,
                            .beta2 = o.beta2,
                            .epsilon = o.epsilon,
                            .weight_decay = o.weight_decay},
                           m.state.updates, s);
      PutRow(o.tables[t], at, s.w);
      PutRow(o.m[t], at, s.m);
      PutRow(o.v[t], at, s.v);
    });
  }
  void operator()(const InteractionForward& o) const {
    Put(o.y, reference::Interaction(R(o.x), R(o.e), {o.batch, o.count, o.width}));
  }
  void operator()(const InteractionBackward& o) const {
    const auto g =
        reference::InteractionBackward(R(o.dy), R(o.x), R(o.e), {o.batch, o.count, o.width});
    Put(o.dx, g.dx);
    Put(o.de, g.de);
  }
  void operator()(const BinaryCrossEntropy& o) const {
    const auto r = reference::BinaryCrossEntropy(R(o.logits), m.ReadIds(o.targets),
                                                 o.scale * LossScaleOf(o.state));
    Put(o.losses, r.losses);
    Put(o.correct, r.correct);
    Put(o.dlogits, r.dlogits);
  }
  void operator()(const AttentionForward& o) const {
    const auto r = reference::Attention(R(o.qkv), ShapeOf(o, m.ReadIds(o.lengths)));
    Put(o.y, r.y);
    Put(o.lse, r.lse);
  }
  void operator()(const AttentionBackward& o) const {
    Put(o.dqkv, reference::AttentionBackward(R(o.dy), R(o.qkv), ShapeOf(o, m.ReadIds(o.lengths))));
  }
  void operator()(const CrossEntropy& o) const {
    const auto r = reference::CrossEntropy(R(o.logits), m.ReadIds(o.targets), o.classes,
                                           o.scale * LossScaleOf(o.state), o.smoothing, o.z_loss);
    Put(o.losses, r.losses);
    Put(o.z_losses, r.z_losses);
    Put(o.correct, r.correct);
    Put(o.dlogits, r.dlogits);
  }
  void operator()(const AddParts& o) const {
    Vec y(o.rows * o.cols, 0);
    for (const TensorId part : o.parts) {
      const Vec values = R(part);
      for (size_t i = 0; i < y.size(); ++i) y[i] += values[i];
    }
    const Vec bias = R(o.bias);
    for (size_t i = 0; i < y.size() && !bias.empty(); ++i) y[i] += bias[i % o.cols];
    Put(o.y, y);
  }
  void operator()(const Arrive&) const {}
  void operator()(const AddRows& o) const {
    Vec y(o.rows * o.cols, 0);
    const auto add = [&](const std::vector<TensorId>& parts, int64_t first) {
      for (const TensorId part : parts) {
        const Vec values = R(part);
        for (size_t i = 0; i < y.size(); ++i) y[i] += values[first + i];
      }
    };
    add(o.made, o.first_row * o.cols);
    add(o.received, 0);
    const Vec bias = R(o.bias);
    for (size_t i = 0; i < y.size() && !bias.empty(); ++i) y[i] += bias[i % o.cols];
    Put(o.y, y);
  }
  void operator()(const TakeRows& o) const {
    const Vec x = R(o.x);
    const auto first = x.begin() + o.first_row * o.cols;
    Put(o.y, Vec(first, first + o.rows * o.cols));
  }
  void operator()(const GatherRows& o) const {
    Vec y = R(o.y);
    const Vec x = R(o.x);
    std::copy(x.begin(), x.end(), y.begin() + o.first_row * o.cols);
    Put(o.y, y);
  }
  void operator()(const Spread& o) const {
    for (const TensorId copy : o.copies) Put(copy, R(o.x));
  }
  // Calls f(place, table, row of the table) for each place whose row one of `tables` has.
  template <typename O, typename F>
  void ForEachRow(const O& o, const std::vector<TensorId>& tables, const F& f) const {
    const std::vector<int32_t> ids = m.ReadIds(o.ids);
    for (int64_t place = 0; place < o.places; ++place) {
      int64_t row = ids[place] - o.first;
      for (const TensorId table : tables) {
        const int64_t rows = m.plan_.tensors[table].dims[0];
        if (row >= 0 && row < rows) f(place, table, row);
        row -= rows;
      }
    }
  }
  void operator()(const EmbeddingShardsForward& o) const {
    Vec y = R(o.y);
    ForEachRow(o, o.tables, [&](int64_t place, TensorId table, int64_t row) {
      const Vec values = R(table);
      std::copy_n(values.begin() + row * o.width, o.width, y.begin() + place * o.width);
    });
    Put(o.y, y);
  }
  void operator()(const EmbeddingShardsBackward& o) const {
    const Vec dy = R(o.dy);
    ForEachRow(o, o.gradients, [&](int64_t place, TensorId gradient, int64_t row) {
      Vec values = R(gradient);
      for (int64_t c = 0; c < o.width; ++c) values[row * o.width + c] += dy[place * o.width + c];
      Put(gradient, values);
    });
  }
  void operator()(const CrossEntropyShard& o) const {
    const Vec logits = R(o.logits);
    const std::vector<int32_t> targets = m.ReadIds(o.targets);
    Vec statistics;
    for (int64_t row = 0; row < o.rows; ++row) {
      const auto x = logits.begin() + row * o.classes;
      const auto largest = std::max_element(x, x + o.classes);
      double sum = 0, mean = 0;
      for (int64_t c = 0; c < o.classes; ++c) {
        sum += std::exp(x[c] - *largest);
        mean += (x[c] - *largest) / static_cast<double>(o.classes);
      }
      const int64_t target = targets[row] - o.first;
      const double of_target = target >= 0 && target < o.classes ? x[target] : 0;
      statistics.insert(statistics.end(),
                        {*largest, sum, mean, of_target, static_cast<double>(largest - x)});
    }
    Put(o.statistics, statistics);
  }
  void operator()(const CrossEntropyOfShards& o) const {
    const auto shards = static_cast<int64_t>(o.statistics.size());
    const double smoothing = o.smoothing, z_loss = o.z_loss;
    const std::vector<int32_t> targets = m.ReadIds(o.targets);
    Vec losses, z_losses, correct, norms;
    for (int64_t row = 0; row < o.rows; ++row) {
      double largest = -std::numeric_limits<double>::infinity(), sum = 0, mean = 0, of_target = 0;
      int64_t best = -1;
      const auto of = [&](int64_t shard) {
        const Vec all = R(o.statistics[shard]);
        return Vec(all.begin() + row * 5, all.begin() + row * 5 + 5);
      };
      for (int64_t s = 0; s < shards; ++s) {
        if (of(s)[0] > largest) best = o.classes * s / shards + static_cast<int64_t>(of(s)[4]);
        largest = std::max(largest, of(s)[0]);
      }
      for (int64_t s = 0; s < shards; ++s) {
        const int64_t first = o.classes * s / shards, end = o.classes * (s + 1) / shards;
        const double above = of(s)[0] - largest;
        sum += of(s)[1] * std::exp(above);
        mean +=
            static_cast<double>(end - first) * (of(s)[2] + above) / static_cast<double>(o.classes);
        if (targets[row] >= first && targets[row] < end) of_target = of(s)[3];
      }
      const bool counts = targets[row] >= 0;
      const double lse = std::log(sum) + largest, z = z_loss * lse * lse;
      losses.push_back(!counts ? 0
                               : std::log(sum) - (1 - smoothing) * (of_target - largest) -
                                     smoothing * mean + z);
      z_losses.push_back(counts ? z : 0);
      correct.push_back(counts && best == targets[row] ? 1 : 0);
      norms.insert(norms.end(), {largest, sum});
    }
    Put(o.losses, losses);
    Put(o.z_losses, z_losses);
    Put(o.correct, correct);
    Put(o.norms, norms);
  }
  void operator()(const CrossEntropyShardGradient& o) const {
    const Vec norms = R(o.norms);
    const double smoothing = o.smoothing, z_loss = o.z_loss, scale = o.scale;
    const std::vector<int32_t> targets = m.ReadIds(o.targets);
    Vec x = R(o.logits);
    for (int64_t i = 0; i < o.rows * o.classes; ++i) {
      const int64_t row = i / o.classes, target = targets[row] - o.first;
      const double largest = norms[2 * row], sum = norms[2 * row + 1];
      const double lse = std::log(sum) + largest;
      const double wanted = smoothing / static_cast<double>(o.all_classes) +
                            (target == i % o.classes ? 1 - smoothing : 0);
      x[i] = (std::exp(x[i] - largest) / sum * (1 + 2 * z_loss * lse) - wanted) * scale *
             LossScaleOf(o.state);
      if (targets[row] < 0) x[i] = 0;
    }
    Put(o.dlogits, x);
  }
  void operator()(const CountTargets& o) const {
    double count = 0;
    for (const int32_t target : m.ReadIds(o.targets)) count += target >= 0;
    Put(o.count, {count}, o.accumulate);
  }
  void operator()(const Sum& o) const {
    double sum = 0;
    for (const double v : R(o.x)) sum += v;
    Put(o.sum, {sum}, o.accumulate);
  }
  void operator()(const ConvolutionForward& o) const {
    Put(o.y, reference::Convolution(R(o.x), R(o.w), R(o.bias), o.shape));
  }
  void operator()(const ConvolutionBackwardData& o) const {
    Put(o.dx, reference::ConvolutionBackwardData(R(o.dy), R(o.w), o.shape));
  }
  void operator()(const ConvolutionBackwardWeights& o) const {
    const auto r = reference::ConvolutionBackwardWeights(R(o.x), R(o.dy), o.shape);
    Put(o.dw, r.dw, o.accumulate);
    Put(o.dbias, r.dbias, o.accumulate);
  }
  void operator()(const NormalizeImages& o) const {
    const Vec x = o.places == kNone ? R(o.x)
                                    : reference::CropImages(R(o.x), m.ReadIds(o.places), o.height,
                                                            o.width, o.channels);
    const Vec mean(o.mean.begin(), o.mean.begin() + o.channels),
        std(o.std.begin(), o.std.begin() + o.channels);
    Put(o.y, reference::NormalizeImages(x, mean, std));
  }
  void operator()(const MaxPoolForward& o) const {
    const auto r = reference::MaxPool(R(o.x), o.shape);
    Put(o.y, r.y);
    Put(o.index, ToVec(r.index));
  }
  void operator()(const MaxPoolBackward& o) const {
    Put(o.dx, reference::MaxPoolBackward(R(o.dy), ToBytes(R(o.index)), o.shape));
  }
  void operator()(const MeanPoolForward& o) const {
    Put(o.y, reference::MeanPool(R(o.x), o.batch, o.pixels, o.channels));
  }
  void operator()(const MeanPoolBackward& o) const {
    Put(o.dx, reference::MeanPoolBackward(R(o.dy), o.batch, o.pixels, o.channels));
  }
  void operator()(const Transpose& o) const {
    const Vec x = R(o.x);
    Vec y(x.size());
    for (int64_t b = 0; b < o.batch; ++b) {
      for (int64_t i = 0; i < o.rows; ++i) {
        for (int64_t j = 0; j < o.cols; ++j) {
          y[(b * o.cols + j) * o.rows + i] = x[(b * o.rows + i) * o.cols + j];
        }
      }
    }
    Put(o.y, y);
  }
  void operator()(const SquaredNorm& o) const {
    double sum = 0;
    for (const double v : R(o.x, o.n)) sum += v * v;
    Put(o.sum, {sum}, o.accumulate);
  }
  void operator()(const SquaredNormLeaves& o) const {
    const std::vector<double> x = R(o.x, o.n);
    std::vector<double> leaves((x.size() + kernels::kNormLeaf - 1) / kernels::kNormLeaf);
    for (size_t i = 0; i < x.size(); ++i) leaves[i / kernels::kNormLeaf] += x[i] * x[i];
    Put(o.leaves, leaves);
  }
  void operator()(const AddLeaves& o) const {
    double sum = 0;
    for (const double leaf : R(o.leaves, o.count)) sum += leaf;
    Put(o.sum, {sum});
  }
  void operator()(const ClipScale& o) const {
    const double count = R(o.count)[0];
    const double factor =
        (count > 0 ? static_cast<double>(o.rows) / count : 1) / LossScaleOf(o.state);
    const double norm = std::sqrt(R(o.sum)[0]) * factor;
    Put(o.norm, {norm});
    Put(o.scale, {factor * std::min(1.0, static_cast<double>(o.max_norm) / (norm + 1e-6))});
  }
  template <typename O>
  double Rate(const O& o) const {
    return static_cast<double>(m.state.learning_rate) * o.learning_rate_scale;
  }
  double LossScaleOf(TensorId state) const { return state == kNone ? 1 : m.state.loss_scale; }
  double ScaleOf(TensorId grad_scale) const { return grad_scale == kNone ? 1 : R(grad_scale)[0]; }
  void operator()(const SgdStep& o) const {
    reference::SgdState s{.w = R(o.w, o.n),
                          .velocity = o.velocity == kNone ? Vec(o.n, 0) : R(o.velocity, o.n)};
    reference::SgdStep(R(o.grad, o.n), ScaleOf(o.grad_scale),
                       {.lr = Rate(o),
                        .momentum = o.momentum,
                        .weight_decay = o.weight_decay,
                        .nesterov = o.nesterov},
                       m.state.updates, s);
    Put(o.w, s.w);
    Put(o.copy, s.w);
    Put(o.velocity, s.velocity);
  }
  void operator()(const AdamWStep& o) const {
    reference::AdamWState s{.w = R(o.w, o.n), .m = R(o.m, o.n), .v = R(o.v, o.n)};
    reference::AdamWStep(R(o.grad, o.n), ScaleOf(o.grad_scale),
                         {.lr = Rate(o),
                          .beta1 = o.beta1,
                          .beta2 = o.beta2,
                          .epsilon = o.epsilon,
                          .weight_decay = o.weight_decay},
                         m.state.updates, s);
    Put(o.w, s.w);
    Put(o.copy, s.w);
    Put(o.m, s.m);
    Put(o.v, s.v);
  }
  // Elements [offset, offset + n), which may lie past the first tensor.
  Vec Piece(TensorId id, int64_t offset, int64_t n) const {
    const Vec all = R(id, offset + n);
    return Vec(all.begin() + offset, all.end());
  }
  void PutPiece(TensorId id, int64_t offset, const Vec& piece) const {
    Vec all = R(id, offset);
    all.insert(all.end(), piece.begin(), piece.end());
    Put(id, all);
  }
  void operator()(const LambStep& o) const {
    reference::AdamWState s{.w = Piece(o.w, o.offset, o.n),
                            .m = Piece(o.m, o.offset, o.n),
                            .v = Piece(o.v, o.offset, o.n)};
    reference::LambStep(Piece(o.grad, o.offset, o.n), ScaleOf(o.grad_scale),
                        {.lr = Rate(o),
                         .beta1 = o.beta1,
                         .beta2 = o.beta2,
                         .epsilon = o.epsilon,
                         .weight_decay = o.weight_decay},
                        o.adapt, m.state.updates, s);
    PutPiece(o.w, o.offset, s.w);
    PutPiece(o.m, o.offset, s.m);
    PutPiece(o.v, o.offset, s.v);
  }
  void operator()(const MuonMomentum& o) const {
    Vec velocity = Piece(o.velocity, o.offset, o.n);
    Put(o.y, reference::MuonMomentum(Piece(o.grad, o.offset, o.n), ScaleOf(o.grad_scale),
                                     o.momentum, o.nesterov, velocity));
    PutPiece(o.velocity, o.offset, velocity);
  }
  void operator()(const DivideByNorm& o) const {
    Vec x = R(o.x, o.n);
    for (double& v : x) v /= std::sqrt(R(o.sum)[0]) + o.epsilon;
    Put(o.x, x);
  }
  void operator()(const NewtonSchulz& o) const {
    const Vec x = R(o.x);
    Vec y = R(o.y);
    for (int64_t i = 0; i < o.n * o.n; ++i) {
      y[i] = (i % (o.n + 1) == 0 ? o.a : 0) + o.b * x[i] + o.c * y[i];
    }
    Put(o.y, y);
  }
  void operator()(const MuonStep& o) const {
    Vec w = Piece(o.w, o.offset, o.n);
    const Vec x = R(o.x);
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] -= Rate(o) * (o.weight_decay * w[i] + o.scale * x[i]);
    }
    PutPiece(o.w, o.offset, w);
  }
  void operator()(const CopyIfTaken& o) const { Put(o.y, R(o.x, o.n)); }
  void operator()(const Fold& o) const {
    Vec total = R(o.total, o.n);
    const Vec part = R(o.part, o.n);
    for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
    Put(o.total, total);
  }
  void operator()(const EmaStep& o) const {
    Vec average = R(o.average, o.n);
    reference::EmaStep(R(o.w, o.n), o.decay, o.warmup, m.state.step, average);
    Put(o.average, average);
  }
};

void Interpreter::Run(const std::vector<Op>& ops) {
  for (const Op& op : ops) std::visit(Executor{*this}, op);
}

}  // namespace trainyard::plan
