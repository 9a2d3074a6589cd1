// B batch, T context, C width, V vocabulary.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::plan {
namespace {

using Layout = GraphBuilder::WeightLayout;

// nanoGPT's initialisation: weights N(0, 0.02), those that end a residual branch smaller so that
// the sum of 2 * layers branches keeps its variance (Radford et al. 2019, 2.3).
// x + attention(ln_1(x)), then x + mlp(ln_2(x)).
TensorId AddBlock(const v1::Gpt& gpt, const std::string& name, TensorId x, GraphBuilder& builder) {
  const int64_t time = gpt.context();
  const int64_t rows = builder.batch() * time;
  const int64_t width = gpt.width();
  const bool bias = gpt.bias();
  const double dropout = gpt.dropout();
  const GraphBuilder::LinearOptions inner = {
      .layout = Layout::kInOut, .bias = bias, .std = kInitializerRange};
  const GraphBuilder::LinearOptions last = {
      .layout = Layout::kInOut,
      .bias = bias,
      .std = kInitializerRange / std::sqrt(2.0 * gpt.layers())};

  const std::string attn = absl::StrCat(name, ".attn");
  TensorId y = builder.LayerNorm(absl::StrCat(name, ".ln_1"), x, rows, width, bias);
  y = builder.Linear(absl::StrCat(attn, ".c_attn"), y, rows, width, 3 * width, inner);
  y = builder.Attention(attn, y, time, gpt.heads(), gpt.heads(), width / gpt.heads(), {});
  y = builder.Drop(absl::StrCat(attn, ".attn_dropout"), y, dropout);
  y = builder.Linear(absl::StrCat(attn, ".c_proj"), y, rows, width, width, last);
  y = builder.Drop(absl::StrCat(attn, ".resid_dropout"), y, dropout);
  x = builder.Sum(absl::StrCat(name, ".after_attn"), x, y);

  const std::string mlp = absl::StrCat(name, ".mlp");
  y = builder.LayerNorm(absl::StrCat(name, ".ln_2"), x, rows, width, bias);
  y = builder.Linear(absl::StrCat(mlp, ".c_fc"), y, rows, width, gpt.mlp_width(), inner);
  y = builder.Activate(absl::StrCat(mlp, ".act"), y, KindOf(gpt.activation()));
  y = builder.Linear(absl::StrCat(mlp, ".c_proj"), y, rows, gpt.mlp_width(), width, last);
  y = builder.Drop(absl::StrCat(mlp, ".dropout"), y, dropout);
  return builder.Sum(absl::StrCat(name, ".after_mlp"), x, y);
}

}  // namespace

absl::StatusOr<Forward> BuildGpt(const v1::Gpt& gpt, const DataFacts& facts,
                                 GraphBuilder& builder) {
  const int64_t time = gpt.context();
  TY_ASSIGN_OR_RETURN(
      const int64_t vocab,
      VocabularyFor("gpt", time, gpt.has_vocab_size() ? gpt.vocab_size() : facts.vocab, facts));
  const int64_t rows = builder.batch() * time;
  Forward forward;
  forward.rows_per_sample = time;
  forward.classes = vocab;
  forward.input = builder.Input("input", ElementType::kI32, {builder.batch(), time});
  const TensorId wte =
      builder.Parameter("transformer.wte.weight", {vocab, gpt.width()}, kInitializerRange);
  const TensorId wpe =
      builder.Parameter("transformer.wpe.weight", {time, gpt.width()}, kInitializerRange);
  TensorId x = builder.Embedding("transformer.embedding", forward.input, wte, wpe, time);
  x = builder.Drop("transformer.drop", x, gpt.dropout());
  for (int i = 0; i < gpt.layers(); ++i) {
    x = AddBlock(gpt, absl::StrCat("transformer.h.", i), x, builder);
  }
  x = builder.LayerNorm("transformer.ln_f", x, rows, gpt.width(), gpt.bias());
  const TensorId head =
      gpt.tie_embeddings()
          ? wte
          : builder.Parameter("lm_head.weight", {vocab, gpt.width()}, kInitializerRange);
  forward.logits = builder.Project("lm_head", x, head, rows, gpt.width(), vocab);
  return forward;
}

}  // namespace trainyard::plan
