#include "executor/plan/graph/shard_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

using Layout = GraphBuilder::WeightLayout;

int64_t SizeOfRuns(const std::vector<Run>& runs) {
  int64_t size = 0;
  for (const Run& run : runs) size += run.size();
  return size;
}

}  // namespace

std::vector<Run> CutIn(int64_t shards, int64_t n) {
  if (shards == 1) return {{0, n}};
  std::vector<Run> runs;
  for (int64_t s = 0; s < shards; ++s) {
    const Run run{n * s / shards, n * (s + 1) / shards};
    if (run.size() > 0) runs.push_back(run);
  }
  return runs;
}

std::vector<Run> CutHeads(int64_t shards, int64_t heads, int64_t kv_heads) {
  const int64_t group = heads / kv_heads;
  std::vector<Run> runs;
  if (kv_heads >= shards) {
    for (const Run& kv : CutIn(shards, kv_heads))
      runs.push_back({kv.first * group, kv.end * group});
    return runs;
  }
  for (int64_t kv = 0; kv < kv_heads; ++kv) {
    const int64_t sharing = shards * (kv + 1) / kv_heads - shards * kv / kv_heads;
    for (const Run& run : CutIn(sharing, group)) {
      runs.push_back({kv * group + run.first, kv * group + run.end});
    }
  }
  return runs;
}

int64_t ShardBuilder::Columns::size() const { return SizeOfRuns(held); }

std::string ShardBuilder::NameOf(const std::string& name, int64_t shard) const {
  return whole() ? name : absl::StrCat(name, " (shard ", shard, ")");
}

TensorId ShardBuilder::ParameterShard(const std::string& name, const Shard& shard,
                                      std::vector<int64_t> dims, std::vector<Run> rows,
                                      std::vector<Run> cols, double std, std::vector<Part> parts) {
  std::vector<int64_t> held = {SizeOfRuns(rows)};
  if (dims.size() > 1) held.push_back(SizeOfRuns(cols));
  Tensor tensor{.name = NameOf(name, shard.number),
                .dims = std::move(held),
                .kind = TensorKind::kParameter,
                .init_std = std,
                .parts = std::move(parts)};
  tensor.shard = std::make_shared<const ShardOf>(ShardOf{.whole = name,
                                                         .dims = std::move(dims),
                                                         .rows = std::move(rows),
                                                         .cols = std::move(cols),
                                                         .number = shard.number,
                                                         .count = shard.count});
  return builder_.Find(std::move(tensor));
}

std::vector<TensorId> ShardBuilder::Spread(TensorId x, size_t count) {
  const Tensor tensor = builder_.tensor(x);
  plan::Spread spread{.x = x, .n = tensor.elements()};
  for (size_t i = 0; i < count; ++i) {
    spread.copies.push_back(
        builder_.Activation(NameOf(tensor.name, static_cast<int64_t>(i)), tensor.dims));
  }
  std::vector<TensorId> copies = spread.copies;
  builder_.graph_.ops.push_back(std::move(spread));
  return copies;
}

TensorId ShardBuilder::Sum(TensorId x, const SumOptions& options, const Each& each) {
  const std::vector<Run>& runs = options.cut;
  if (whole()) return each({.things = runs[0]}, x);
  const std::vector<TensorId> copies = Spread(x, runs.size());
  const uint32_t stream = options.dropout ? ++builder_.dropouts_ : 0;
  std::vector<TensorId> parts;
  for (size_t s = 0; s < runs.size(); ++s) {
    const Shard shard{.number = static_cast<int64_t>(s),
                      .count = static_cast<int64_t>(runs.size()),
                      .things = runs[s],
                      .dropout = stream};
    parts.push_back(each(shard, copies[s]));
  }
  const TensorId bias =
      options.bias ? builder_.Parameter(absl::StrCat(options.name, ".bias"), {options.cols}, 0)
                   : kNone;
  const int64_t rows = builder_.tensor(parts[0]).elements() / options.cols;
  const TensorId y = builder_.Activation(options.name, {rows, options.cols});
  builder_.graph_.ops.push_back(AddParts{
      .parts = std::move(parts), .bias = bias, .y = y, .rows = rows, .cols = options.cols});
  return y;
}

TensorId ShardBuilder::LinearIn(const std::string& name, const Shard& shard, TensorId x,
                                int64_t rows, int64_t in, const Columns& out,
                                const LinearOptions& options) {
  if (whole()) return builder_.Linear(name, x, rows, in, out.all, options);
  const bool out_in = options.layout == Layout::kOutIn;
  const std::string weight = absl::StrCat(name, ".weight");
  const std::vector<Run> inputs = {{0, in}};
  const TensorId w =
      out_in ? ParameterShard(weight, shard, {out.all, in}, out.held, inputs, options.std)
             : ParameterShard(weight, shard, {in, out.all}, inputs, out.held, options.std);
  const TensorId bias =
      options.bias ? ParameterShard(absl::StrCat(name, ".bias"), shard, {out.all}, out.held, {}, 0)
                   : kNone;
  const TensorId y = builder_.Activation(NameOf(name, shard.number), {rows, out.size()});
  builder_.graph_.ops.push_back(Matmul{.a = x,
                                       .b = w,
                                       .bias = bias,
                                       .c = y,
                                       .m = rows,
                                       .n = out.size(),
                                       .k = in,
                                       .transpose_b = out_in});
  return y;
}

TensorId ShardBuilder::LinearOut(const std::string& name, const Shard& shard, TensorId x,
                                 int64_t rows, const Columns& in, int64_t out,
                                 const LinearOptions& options) {
  if (whole()) return builder_.Linear(name, x, rows, in.all, out, options);
  const bool out_in = options.layout == Layout::kOutIn;
  const std::string weight = absl::StrCat(name, ".weight");
  const std::vector<Run> outputs = {{0, out}};
  const TensorId w =
      out_in ? ParameterShard(weight, shard, {out, in.all}, outputs, in.held, options.std)
             : ParameterShard(weight, shard, {in.all, out}, in.held, outputs, options.std);
  const TensorId y = builder_.Activation(NameOf(name, shard.number), {rows, out});
  builder_.graph_.ops.push_back(
      Matmul{.a = x, .b = w, .c = y, .m = rows, .n = out, .k = in.size(), .transpose_b = out_in});
  return y;
}

TensorId ShardBuilder::SideBySide(const std::string& name, const Shard& shard, TensorId x,
                                  int64_t rows, int64_t in, const std::vector<LinearPart>& parts,
                                  const std::vector<Run>& held, double std, bool bias) {
  if (whole()) return builder_.LinearSideBySide(name, x, rows, in, parts, std, bias);
  std::vector<Part> weights, biases;
  std::vector<Run> outputs;
  int64_t out = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    weights.push_back({absl::StrCat(parts[i].name, ".weight"), parts[i].out});
    biases.push_back({absl::StrCat(parts[i].name, ".bias"), parts[i].out});
    outputs.push_back({out + held[i].first, out + held[i].end});
    out += parts[i].out;
  }
  const int64_t mine = SizeOfRuns(outputs);
  const TensorId w = ParameterShard(absl::StrCat(name, ".weight"), shard, {out, in}, outputs,
                                    {{0, in}}, std, std::move(weights));
  const TensorId b = bias ? ParameterShard(absl::StrCat(name, ".bias"), shard, {out}, outputs, {},
                                           0, std::move(biases))
                          : kNone;
  return builder_.Project(NameOf(name, shard.number), x, w, rows, in, mine, b);
}

TensorId ShardBuilder::Drop(const std::string& name, const Shard& shard, TensorId x, double p,
                            const Columns& cols) {
  if (whole()) return builder_.Drop(name, x, p);
  if (!builder_.training() || p == 0) return x;
  TY_CHECK(cols.held.size() == 1 && shard.dropout > 0, name, " drops ", cols.held.size(), " runs");
  const std::vector<int64_t> dims = builder_.tensor(x).dims;
  const TensorId y = builder_.Activation(NameOf(name, shard.number), dims);
  builder_.graph_.ops.push_back(
      Dropout{.x = x,
              .y = y,
              .state = builder_.state_,
              .stream = shard.dropout,
              .samples = builder_.batch(),
              .per_sample = builder_.tensor(x).elements() / builder_.batch(),
              .p = static_cast<float>(p),
              .cols = cols.size(),
              .first_col = cols.held[0].first,
              .all_cols = cols.all});
  return y;
}

ShardBuilder::Vocabulary ShardBuilder::Tokens(const std::string& name, int64_t vocab, int64_t width,
                                              double std) {
  if (whole()) return {builder_.Parameter(name, {vocab, width}, std)};
  Vocabulary shards;
  const std::vector<Run> runs = CutIn(builder_.shards_, vocab);
  for (const Run& run : runs) {
    const Shard shard{.number = static_cast<int64_t>(shards.size()),
                      .count = static_cast<int64_t>(runs.size())};
    shards.push_back(ParameterShard(name, shard, {vocab, width}, {run}, {{0, width}}, std));
  }
  return shards;
}

ShardBuilder::Vocabulary ShardBuilder::Again(const Vocabulary& tokens) {
  if (!builder_.uses_apart_) return tokens;
  Vocabulary again;
  for (const TensorId id : tokens) {
    Tensor& first = builder_.graph_.tensors[id];
    if (!first.shard) {
      first.shard = std::make_shared<const ShardOf>(ShardOf{.whole = first.name,
                                                            .dims = first.dims,
                                                            .rows = {{0, first.dims[0]}},
                                                            .cols = {{0, first.dims[1]}}});
    }
    Tensor second = first;
    second.name.append(" (again)");
    again.push_back(builder_.Find(std::move(second)));
  }
  return again;
}

TensorId ShardBuilder::Embedding(const std::string& name, TensorId ids, const Vocabulary& tokens,
                                 TensorId positions, int64_t time) {
  if (whole()) return builder_.Embedding(name, ids, tokens[0], positions, time);
  const std::vector<int64_t> dims = builder_.tensor(tokens[0]).shard->dims;
  const int64_t places = builder_.batch() * time;
  const TensorId y = builder_.Activation(name, {places, dims[1]});
  builder_.graph_.ops.push_back(EmbeddingShardsForward{
      .ids = ids, .y = y, .tables = tokens, .places = places, .width = dims[1], .vocab = dims[0]});
  if (positions == kNone) return y;
  return builder_.AddBias(absl::StrCat(name, ".positions"), y, positions, time * dims[1]);
}

std::vector<TensorId> ShardBuilder::Logits(const std::string& name, TensorId x,
                                           const Vocabulary& tokens, int64_t rows,
                                           const std::string& bias) {
  const int64_t width = builder_.tensor(tokens[0]).dims[1];
  const std::vector<TensorId> copies =
      whole() ? std::vector<TensorId>{x} : Spread(x, tokens.size());
  std::vector<TensorId> logits;
  int64_t all = 0;
  for (const TensorId id : tokens) all += builder_.tensor(id).dims[0];
  for (size_t s = 0; s < tokens.size(); ++s) {
    const Shard shard{.number = static_cast<int64_t>(s),
                      .count = static_cast<int64_t>(tokens.size())};
    const int64_t classes = builder_.tensor(tokens[s]).dims[0];
    TensorId b = kNone;
    if (!bias.empty()) {
      b = whole()
              ? builder_.Parameter(bias, {all}, 0)
              : ParameterShard(bias, shard, {all}, {builder_.tensor(tokens[s]).shard->rows}, {}, 0);
    }
    logits.push_back(builder_.Project(NameOf(name, shard.number), copies[s], tokens[s], rows, width,
                                      classes, b));
  }
  return logits;
}

size_t JoinCopies(Graph& graph) {
  absl::flat_hash_map<TensorId, TensorId> whole;
  const size_t removed = std::erase_if(graph.ops, [&](const Op& op) {
    const auto* const spread = std::get_if<Spread>(&op);
    if (spread == nullptr) return false;
    for (const TensorId copy : spread->copies) whole[copy] = spread->x;
    return true;
  });
  if (removed > 0) Retarget(whole, graph.ops);
  return removed;
}

}  // namespace trainyard::plan
