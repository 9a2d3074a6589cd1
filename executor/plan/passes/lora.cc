#include "executor/plan/passes/lora.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/glob.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr char kLoraField[] = "spec.fine_tune.lora.";

// What the forward pass does with a parameter.
enum class Use { kOther, kLinear, kLogits, kLookedUp, kConvolution };

const char* WhyNot(Use use) {
  switch (use) {
    case Use::kLogits:
      return "makes the logits; also_train trains it as it is";
    case Use::kLookedUp:
      return "is an embedding; also_train trains it as it is";
    case Use::kConvolution:
      return "is a convolution's";
    default:
      return "is no matrix of a linear layer";
  }
}

// By parameter; of linear layers the product.
struct Uses {
  absl::flat_hash_map<TensorId, Use> of;
  absl::flat_hash_map<TensorId, Matmul> products;

  Use Of(TensorId id) const {
    const auto found = of.find(id);
    return found == of.end() ? Use::kOther : found->second;
  }
};

Uses UsesIn(const std::vector<Op>& forward, TensorId logits) {
  Uses uses;
  for (const Op& op : forward) {
    if (const auto* o = std::get_if<Matmul>(&op)) {
      uses.products[o->b] = *o;
      Use& use = uses.of.try_emplace(o->b, Use::kLinear).first->second;
      if (o->c == logits) use = Use::kLogits;
    }
    if (const auto* o = std::get_if<ConvolutionForward>(&op)) uses.of[o->w] = Use::kConvolution;
  }
  // Whatever else is done with a table.
  for (const Op& op : forward) {
    if (const auto* o = std::get_if<EmbeddingForward>(&op)) {
      uses.of[o->tokens] = uses.of[o->positions] = Use::kLookedUp;
    }
    if (const auto* o = std::get_if<EmbeddingTablesForward>(&op)) {
      for (const TensorId table : o->tables) uses.of[table] = Use::kLookedUp;
    }
  }
  return uses;
}

// Whether weights of this name are adapted where the spec names no targets.
bool AdaptedByDefault(const v1::Model& model, const std::string& name) {
  switch (model.family_case()) {
    case v1::Model::kGpt:
      return absl::StartsWith(name, "transformer.h.");
    case v1::Model::kLlama:
      return absl::StartsWith(name, "model.layers.");
    case v1::Model::kBert:
      return absl::StartsWith(name, "bert.encoder.layer.");
    case v1::Model::kVit:
      return absl::StartsWith(name, "vit.encoder.layer.");
    default:
      return true;
  }
}

// A stored tensor, and the parameter that it is a part of.
struct Candidate {
  TensorId parameter = kNone;
  StoredTensor stored;
};

class AdapterChoice {
 public:
  AdapterChoice(const v1::JobSpec& spec, TensorId logits, const Graph& graph)
      : model_(spec.model()), lora_(spec.fine_tune().lora()), uses_(UsesIn(graph.ops, logits)) {
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].kind != TensorKind::kParameter) continue;
      const auto id = static_cast<TensorId>(i);
      for (StoredTensor& stored : Stored(graph.tensors[i])) all_.push_back({id, std::move(stored)});
    }
  }

  absl::StatusOr<std::vector<Candidate>> Targets() const {
    const auto linear = [&](const Candidate& c) { return uses_.Of(c.parameter) == Use::kLinear; };
    std::vector<Candidate> targets;
    for (const Candidate& c : all_) {
      const bool wanted = lora_.targets().empty() ? AdaptedByDefault(model_, c.stored.name)
                                                  : Matches(lora_.targets(), c.stored.name);
      if (linear(c) && wanted) targets.push_back(c);
    }
    for (int i = 0; i < lora_.targets_size(); ++i) {
      const std::string& pattern = lora_.targets(i);
      const auto matches = [&](const Candidate& c) { return GlobMatches(pattern, c.stored.name); };
      if (std::any_of(targets.begin(), targets.end(), matches)) continue;
      const std::string at = absl::StrCat(kLoraField, "targets[", i, "]");
      const auto other = std::find_if(all_.begin(), all_.end(), matches);
      if (other != all_.end()) {
        return Invalid(at, "'", pattern,
                       "' matches no weight of a linear layer: ", other->stored.name, " ",
                       WhyNot(uses_.Of(other->parameter)));
      }
      return Invalid(at, "'", pattern, "' matches no parameter; the nearest weights are ",
                     NearestNames(pattern, NamesOf(linear)));
    }
    if (targets.empty()) {
      return Invalid("spec.fine_tune.lora",
                     "this model has no linear layer to adapt, heads that make the logits apart; "
                     "leave it out");
    }
    return targets;
  }

  absl::StatusOr<absl::flat_hash_set<TensorId>> AlsoTrained(
      const std::vector<Candidate>& targets) const {
    absl::flat_hash_set<TensorId> trained;
    for (int i = 0; i < lora_.also_train_size(); ++i) {
      const std::string& pattern = lora_.also_train(i);
      const std::string at = absl::StrCat(kLoraField, "also_train[", i, "]");
      const size_t before = trained.size();
      for (const Candidate& c : all_) {
        if (!GlobMatches(pattern, c.stored.name)) continue;
        const auto adapted = std::find_if(targets.begin(), targets.end(), [&](const Candidate& t) {
          return t.parameter == c.parameter;
        });
        if (adapted != targets.end()) {
          return Invalid(at, "'", pattern, "' matches ", c.stored.name, ", but ",
                         adapted->stored.name, " is adapted; leave it out here or of targets");
        }
        trained.insert(c.parameter);
      }
      if (trained.size() == before && !MatchesAny(pattern)) {
        return Invalid(at, "'", pattern, "' matches no parameter; the nearest are ",
                       NearestNames(pattern, NamesOf([](const Candidate&) { return true; })));
      }
    }
    for (const Candidate& c : all_) {
      if (!trained.contains(c.parameter) || Matches(lora_.also_train(), c.stored.name)) continue;
      return Invalid(absl::StrCat(kLoraField, "also_train"), c.stored.name,
                     " is one tensor here with one that it names; name both");
    }
    return trained;
  }

  absl::Status CheckRank(const Candidate& target) const {
    const std::vector<int64_t>& dims = target.stored.dims;
    if (lora_.rank() <= std::min(dims[0], dims[1])) return absl::OkStatus();
    return Invalid(absl::StrCat(kLoraField, "rank"), lora_.rank(),
                   " is more than the smaller side of ", target.stored.name, " [",
                   absl::StrJoin(dims, ", "), "]");
  }

  const std::vector<Candidate>& all() const { return all_; }
  bool stored_in_out(TensorId weight) const { return !uses_.products.at(weight).transpose_b; }

 private:
  using Patterns = google::protobuf::RepeatedPtrField<std::string>;

  static bool Matches(const Patterns& patterns, const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return GlobMatches(pattern, name); });
  }
  bool MatchesAny(const std::string& pattern) const {
    return std::any_of(all_.begin(), all_.end(),
                       [&](const Candidate& c) { return GlobMatches(pattern, c.stored.name); });
  }
  template <typename F>
  std::vector<std::string> NamesOf(const F& wanted) const {
    std::vector<std::string> names;
    for (const Candidate& c : all_) {
      if (wanted(c)) names.push_back(c.stored.name);
    }
    return names;
  }

  const v1::Model& model_;
  const v1::Lora& lora_;
  const Uses uses_;
  std::vector<Candidate> all_;
};

}  // namespace

absl::StatusOr<Adaptation> ChooseAdapters(const v1::JobSpec& spec, TensorId logits,
                                          const Graph& graph, GraphBuilder& builder) {
  const v1::Lora& lora = spec.fine_tune().lora();
  const AdapterChoice choice(spec, logits, graph);
  TY_ASSIGN_OR_RETURN(const std::vector<Candidate> targets, choice.Targets());
  TY_ASSIGN_OR_RETURN(const auto also_trained, choice.AlsoTrained(targets));
  Adaptation adaptation;
  for (const Candidate& c : choice.all()) {
    if (!also_trained.contains(c.parameter)) adaptation.frozen.insert(c.parameter);
  }
  for (const Candidate& target : targets) {
    TY_RETURN_IF_ERROR(choice.CheckRank(target));
    const bool in_out = choice.stored_in_out(target.parameter);
    const int64_t in = target.stored.dims[in_out ? 0 : 1], out = target.stored.dims[in_out ? 1 : 0];
    const std::string module(absl::StripSuffix(target.stored.name, ".weight"));
    // The deviation of torch's Linear, a uniform in +-sqrt(1 / in).
    const double std = 1 / std::sqrt(3.0 * static_cast<double>(in));
    adaptation.adapters.push_back(
        {.weight = target.parameter,
         .stored = target.stored,
         .in_out = in_out,
         .a = builder.Parameter(absl::StrCat(module, ".lora_A.weight"), {lora.rank(), in}, std),
         .b = builder.Parameter(absl::StrCat(module, ".lora_B.weight"), {out, lora.rank()}, 0),
         .scale = lora.alpha() / lora.rank()});
  }
  TY_RETURN_IF_ERROR(builder.status());
  return adaptation;
}

void ApplyAdapters(const std::vector<Adapter>& adapters, double dropout, GraphBuilder& builder,
                   Graph& graph) {
  absl::flat_hash_map<TensorId, std::vector<Adapter>> of_weight;
  for (const Adapter& adapter : adapters) of_weight[adapter.weight].push_back(adapter);
  std::vector<Op> ops = std::exchange(graph.ops, {});
  for (Op& op : ops) {
    auto* const product = std::get_if<Matmul>(&op);
    const auto found = product == nullptr ? of_weight.end() : of_weight.find(product->b);
    if (found == of_weight.end()) {
      graph.ops.push_back(std::move(op));
      continue;
    }
    const TensorId y = product->c;
    const std::string name = graph[y].name;
    const std::vector<int64_t> dims = graph[y].dims;
    TensorId sum = product->c = builder.Activation(absl::StrCat(name, ".unadapted"), dims);
    graph.ops.push_back(*product);
    const TensorId x = builder.Drop(absl::StrCat(name, ".lora_dropout"), product->a, dropout);
    for (const Adapter& adapter : found->second) {
      const int64_t rank = graph[adapter.a].dims[0], n = graph[adapter.b].dims[0];
      const TensorId low =
          builder.Activation(absl::StrCat(graph[adapter.a].name, ".y"), {product->m, rank});
      graph.ops.push_back(Matmul{.a = x,
                                 .b = adapter.a,
                                 .c = low,
                                 .m = product->m,
                                 .n = rank,
                                 .k = product->k,
                                 .transpose_b = true});
      const bool last = &adapter == &found->second.back();
      const TensorId next =
          last ? y : builder.Activation(absl::StrCat(graph[adapter.b].name, ".y"), dims);
      graph.ops.push_back(AddProduct{.base = sum,
                                     .a = low,
                                     .b = adapter.b,
                                     .y = next,
                                     .rows = product->m,
                                     .cols = product->n,
                                     .first = adapter.first_row(graph[adapter.weight]),
                                     .n = n,
                                     .k = rank,
                                     .scale = static_cast<float>(adapter.scale)});
      sum = next;
    }
  }
}

}  // namespace trainyard::plan
