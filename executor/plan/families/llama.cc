// B batch, T context, C width, H heads, K key-value heads, D head width, F mlp width, V vocabulary.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::plan {
namespace {

// Weights N(0, 0.02), those that end a residual branch smaller, as in gpt.cc.
// x + attention(norm(x)), then x + mlp(norm(x)) (Touvron et al. 2023).
TensorId AddBlock(const v1::Llama& llama, const std::string& name, TensorId x,
                  GraphBuilder& builder) {
  const int64_t T = llama.context(), C = llama.width(), F = llama.mlp_width();
  const int64_t H = llama.heads(), K = llama.kv_heads(), D = C / H;
  const int64_t rows = builder.batch() * T;
  const GraphBuilder::LinearOptions last = {
      .bias = false, .std = kInitializerRange / std::sqrt(2.0 * llama.layers())};

  const std::string attn = absl::StrCat(name, ".self_attn");
  TensorId y = builder.RmsNorm(absl::StrCat(name, ".input_layernorm"), x, rows, C, llama.epsilon());
  y = builder.LinearSideBySide(absl::StrCat(attn, ".qkv_proj"), y, rows, C,
                               {{absl::StrCat(attn, ".q_proj"), H * D},
                                {absl::StrCat(attn, ".k_proj"), K * D},
                                {absl::StrCat(attn, ".v_proj"), K * D}},
                               kInitializerRange);
  y = builder.Rotate(absl::StrCat(attn, ".rotary"), y, T, H + 2 * K, H + K, D, llama.rope_theta());
  y = builder.Attention(attn, y, T, H, K, D, {});
  y = builder.Linear(absl::StrCat(attn, ".o_proj"), y, rows, C, C, last);
  x = builder.Sum(absl::StrCat(name, ".after_attn"), x, y);

  const std::string mlp = absl::StrCat(name, ".mlp");
  y = builder.RmsNorm(absl::StrCat(name, ".post_attention_layernorm"), x, rows, C, llama.epsilon());
  y = builder.LinearSideBySide(
      absl::StrCat(mlp, ".gate_up_proj"), y, rows, C,
      {{absl::StrCat(mlp, ".gate_proj"), F}, {absl::StrCat(mlp, ".up_proj"), F}},
      kInitializerRange);
  y = builder.SwiGlu(absl::StrCat(mlp, ".act"), y, rows, F);
  y = builder.Linear(absl::StrCat(mlp, ".down_proj"), y, rows, F, C, last);
  return builder.Sum(absl::StrCat(name, ".after_mlp"), x, y);
}

}  // namespace

absl::StatusOr<Forward> BuildLlama(const v1::Llama& llama, const DataFacts& facts,
                                   GraphBuilder& builder) {
  const int64_t T = llama.context(), C = llama.width();
  TY_ASSIGN_OR_RETURN(
      const int64_t V,
      VocabularyFor("llama", T, llama.has_vocab_size() ? llama.vocab_size() : facts.vocab, facts));
  const int64_t rows = builder.batch() * T;
  Forward forward;
  forward.rows_per_sample = T;
  forward.classes = V;
  forward.input = builder.Input("input", ElementType::kI32, {builder.batch(), T});
  const TensorId tokens = builder.Parameter("model.embed_tokens.weight", {V, C}, kInitializerRange);
  TensorId x = builder.Embedding("model.embedding", forward.input, tokens, kNone, T);
  for (int i = 0; i < llama.layers(); ++i) {
    x = AddBlock(llama, absl::StrCat("model.layers.", i), x, builder);
  }
  x = builder.RmsNorm("model.norm", x, rows, C, llama.epsilon());
  const TensorId head = llama.tie_embeddings()
                            ? tokens
                            : builder.Parameter("lm_head.weight", {V, C}, kInitializerRange);
  forward.logits = builder.Project("lm_head", x, head, rows, C, V);
  return forward;
}

}  // namespace trainyard::plan
