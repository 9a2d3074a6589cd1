#include "executor/plan/passes/parameter_rules.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/plan/spec/glob.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

constexpr int kUngrouped = -1;

std::string FieldOf(int group) { return absl::StrCat("spec.optimizer.groups[", group, "]"); }

int GroupOf(const v1::Optimizer& optimizer, const std::string& name) {
  for (int g = 0; g < optimizer.groups_size(); ++g) {
    if (GlobMatches(optimizer.groups(g).pattern(), name)) return g;
  }
  return kUngrouped;
}

absl::Status PartedTensor(const v1::Optimizer& optimizer, int group, const std::string& in,
                          const std::string& out) {
  return absl::InvalidArgumentError(
      absl::StrCat(FieldOf(group), ".pattern: '", optimizer.groups(group).pattern(), "' takes ", in,
                   " but not ", out, ", which is one matrix product with it; take both"));
}

// The group of each parameter: the same for all of its parts. `fixed` ones are in none.
absl::StatusOr<std::vector<int>> GroupsOf(const v1::Optimizer& optimizer, const Graph& graph,
                                          const std::vector<TensorId>& parameters,
                                          const absl::flat_hash_set<TensorId>& fixed) {
  std::vector<int> groups;
  for (const TensorId id : parameters) {
    if (fixed.contains(id)) {
      groups.push_back(kUngrouped);
      continue;
    }
    const std::vector<StoredTensor> stored = Stored(graph[id]);
    groups.push_back(GroupOf(optimizer, stored[0].name));
    for (const StoredTensor& part : stored) {
      const int other = GroupOf(optimizer, part.name), first = groups.back();
      if (other == first) continue;
      const bool by_first = other == kUngrouped || (first != kUngrouped && first < other);
      return by_first ? PartedTensor(optimizer, first, stored[0].name, part.name)
                      : PartedTensor(optimizer, other, part.name, stored[0].name);
    }
  }
  return groups;
}

std::vector<std::string> StoredNames(const Graph& graph, const std::vector<TensorId>& parameters) {
  std::vector<std::string> names;
  for (const TensorId id : parameters) {
    for (const StoredTensor& part : Stored(graph[id])) names.push_back(part.name);
  }
  return names;
}

// Each group acts on something.
absl::Status CheckAllUsed(const v1::Optimizer& optimizer, const Graph& graph,
                          const std::vector<TensorId>& parameters,
                          const absl::flat_hash_set<TensorId>& fixed,
                          const std::vector<int>& groups) {
  for (int g = 0; g < optimizer.groups_size(); ++g) {
    if (std::find(groups.begin(), groups.end(), g) != groups.end()) continue;
    const std::string& pattern = optimizer.groups(g).pattern();
    bool matches = false, matches_fixed = false;
    for (const TensorId id : parameters) {
      for (const StoredTensor& part : Stored(graph[id])) {
        (fixed.contains(id) ? matches_fixed : matches) |= GlobMatches(pattern, part.name);
      }
    }
    if (matches_fixed && !matches) {
      return absl::InvalidArgumentError(absl::StrCat(
          FieldOf(g), ".pattern: '", pattern,
          "' matches only parameters that fine_tune.lora freezes; leave the group out, "
          "or name them in fine_tune.lora.also_train"));
    }
    if (matches) {
      return absl::InvalidArgumentError(
          absl::StrCat(FieldOf(g), ".pattern: '", pattern,
                       "' matches only parameters that groups before it take; put it before them"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(FieldOf(g), ".pattern: '", pattern, "' matches no parameter; the nearest are ",
                     NearestNames(pattern, StoredNames(graph, parameters))));
  }
  return absl::OkStatus();
}

// Weights of products and convolutions, but for what is looked up in (embeddings, tied heads) and
// for the head; each with whether its input comes first.
absl::flat_hash_map<TensorId, bool> HiddenMatrices(const std::vector<Op>& forward,
                                                   TensorId logits) {
  absl::flat_hash_map<TensorId, bool> hidden;
  absl::flat_hash_set<TensorId> apart;
  for (const Op& op : forward) {
    if (const auto* o = std::get_if<Matmul>(&op)) {
      hidden[o->b] = !o->transpose_b;
      if (o->c == logits) apart.insert(o->b);
    }
    if (const auto* o = std::get_if<AddProduct>(&op)) hidden[o->b] = false;
    if (const auto* o = std::get_if<ConvolutionForward>(&op)) hidden[o->w] = false;
    if (const auto* o = std::get_if<EmbeddingForward>(&op)) apart.insert({o->tokens, o->positions});
  }
  for (const TensorId id : apart) hidden.erase(id);
  return hidden;
}

// The learning rate of what Muon leaves to AdamW, relative to that of the matrices.
double AdamWScale(const v1::JobSpec& spec) {
  const v1::Muon& muon = spec.optimizer().muon();
  if (!muon.has_adamw_learning_rate()) return 1;
  return muon.adamw_learning_rate() / spec.schedule().learning_rate();
}

// `input_first`: none for what is no hidden matrix.
ParameterRule DefaultRule(const v1::JobSpec& spec, const Tensor& parameter,
                          std::optional<bool> input_first) {
  const v1::Optimizer& optimizer = spec.optimizer();
  const double matrices = parameter.dims.size() >= 2 ? 1 : 0;  // what decays unless told
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd:
      return {.method = Method::kSgd, .weight_decay = optimizer.sgd().weight_decay()};
    case v1::Optimizer::kLamb:
      return {.method = Method::kLamb, .weight_decay = matrices * optimizer.lamb().weight_decay()};
    case v1::Optimizer::kMuon:
      if (input_first) {
        return {.method = Method::kMuon,
                .input_first = *input_first,
                .weight_decay = optimizer.muon().weight_decay()};
      }
      return {.method = Method::kAdamW,
              .weight_decay = matrices * optimizer.muon().adamw().weight_decay(),
              .learning_rate_scale = AdamWScale(spec)};
    default:
      return {.method = Method::kAdamW,
              .weight_decay = matrices * optimizer.adamw().weight_decay()};
  }
}

void Apply(const v1::ParameterGroup& group, ParameterRule& rule) {
  if (group.frozen()) {
    rule = {.frozen = true};
    return;
  }
  if (group.has_weight_decay()) rule.weight_decay = group.weight_decay();
  if (group.has_learning_rate_scale()) rule.learning_rate_scale *= group.learning_rate_scale();
}

}  // namespace

absl::StatusOr<std::vector<ParameterRule>> RulesOf(const v1::JobSpec& spec, const Graph& forward,
                                                   const std::vector<TensorId>& parameters,
                                                   TensorId logits,
                                                   const absl::flat_hash_set<TensorId>& fixed) {
  const v1::Optimizer& optimizer = spec.optimizer();
  TY_ASSIGN_OR_RETURN(const std::vector<int> groups,
                      GroupsOf(optimizer, forward, parameters, fixed));
  TY_RETURN_IF_ERROR(CheckAllUsed(optimizer, forward, parameters, fixed, groups));
  const absl::flat_hash_map<TensorId, bool> hidden = HiddenMatrices(forward.ops, logits);
  std::vector<ParameterRule> rules;
  bool trained = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = hidden.find(parameters[i]);
    rules.push_back(
        DefaultRule(spec, forward[parameters[i]],
                    found == hidden.end() ? std::nullopt : std::optional(found->second)));
    if (fixed.contains(parameters[i])) rules.back() = {.frozen = true};
    if (groups[i] != kUngrouped) Apply(optimizer.groups(groups[i]), rules.back());
    trained |= !rules.back().frozen;
  }
  if (trained) return rules;
  return absl::InvalidArgumentError(
      "spec.optimizer.groups: every parameter is frozen; nothing is left to train");
}

namespace {

bool AsksForLazyTables(const v1::Optimizer& optimizer) {
  return optimizer.sgd().lazy_tables() || optimizer.adamw().lazy_tables() ||
         optimizer.muon().adamw().lazy_tables();
}

}  // namespace

absl::StatusOr<bool> HasRowSparseGradient(const v1::Optimizer& optimizer, int64_t logical_ranks,
                                          const Graph& graph, const std::vector<TensorId>& tables,
                                          const std::vector<ParameterRule>& rules) {
  if (tables.empty()) return false;
  const auto differs = std::find_if(rules.begin(), rules.end(), [&](const ParameterRule& rule) {
    return rule.frozen != rules[0].frozen;
  });
  const std::string& first = graph[tables[0]].name;
  if (differs != rules.end()) {
    const std::string& other = graph[tables[differs - rules.begin()]].name;
    return absl::InvalidArgumentError(
        absl::StrCat("spec.optimizer.groups: ", rules[0].frozen ? first : other, " is frozen and ",
                     rules[0].frozen ? other : first,
                     " is not; tables are trained together: freeze all of them or none"));
  }
  if (rules[0].frozen) return false;
  const bool alike = std::all_of(rules.begin(), rules.end(),
                                 [&](const ParameterRule& rule) { return rule == rules[0]; });
  if (AsksForLazyTables(optimizer)) {
    if (alike && rules[0].weight_decay > 0 && optimizer.has_sgd()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "spec.optimizer.sgd.lazy_tables: leaves rows alone that a step does not look up, which a "
          "weight decay of ",
          rules[0].weight_decay, ", as ", first,
          " has, would move; give the tables a group with weight_decay 0, or leave lazy_tables "
          "out"));
    }
    if (alike) return true;
    return absl::InvalidArgumentError(
        absl::StrCat("spec.optimizer.groups: ", first,
                     " is not treated as all the other tables are, which "
                     "lazy_tables asks for; give them one group, or leave lazy_tables out"));
  }
  return alike && logical_ranks == 1 && optimizer.has_sgd() && optimizer.sgd().momentum() == 0 &&
         rules[0].weight_decay == 0;
}

bool StepsWholeTensors(const v1::Optimizer& optimizer, const ParameterRule& rule) {
  if (rule.method == Method::kMuon) return true;
  return rule.method == Method::kLamb &&
         (rule.weight_decay != 0 || optimizer.lamb().always_adapt());
}

std::vector<std::string> StateNames(const v1::Optimizer& optimizer, const ParameterRule& rule) {
  if (rule.frozen) return {};
  switch (rule.method) {
    case Method::kSgd:
      if (optimizer.sgd().momentum() > 0) return {"momentum_buffer"};
      return {};
    case Method::kMuon:
      return {"momentum_buffer"};
    case Method::kAdamW:
    case Method::kLamb:
      return {"exp_avg", "exp_avg_sq"};
  }
  return {};
}

}  // namespace trainyard::plan
