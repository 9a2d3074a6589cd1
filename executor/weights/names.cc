#include "executor/weights/names.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "executor/plan/spec/glob.h"
#include "executor/weights/element_types.h"
#include "executor/weights/suggestions.h"
#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

using Tensors = std::map<std::string, FolderTensor>;

// How transformers names what a family's folders hold besides its parameters.
struct FamilyNames {
  const char* family;
  const char* prefix;              // that files of the base class leave out
  std::vector<const char*> masks;  // patterns of buffers that are no parameters
  std::vector<std::pair<const char*, const char*>> ties;  // the copy's name, the name it repeats
};

const FamilyNames& NamesOf(const std::string& family) {
  static const auto& kFamilies = *new std::vector<FamilyNames>{
      {"bert",
       "bert.",
       {"bert.embeddings.position_ids"},
       {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
        {"cls.predictions.decoder.bias", "cls.predictions.bias"}}},
      {"gpt",
       "transformer.",
       {"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"},
       {{"lm_head.weight", "transformer.wte.weight"}}},
      {"llama",
       "model.",
       {"model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"},
       {{"lm_head.weight", "model.embed_tokens.weight"}}},
      {"mobilenet", "mobilenet_v2.", {}, {}},
      {"resnet", "resnet.", {}, {}},
      {"vit", "vit.", {}, {}}};
  static const auto& kOther = *new FamilyNames{"", "", {}, {}};
  const auto found = absl::c_find_if(kFamilies, [&](const auto& f) { return family == f.family; });
  return found == kFamilies.end() ? kOther : *found;
}

// Parameters have pieces of it, or it is all of a buffer.
struct Expected {
  plan::StoredInShards tensor;
  plan::TensorId buffer = plan::kNone;

  const std::string& name() const { return tensor.stored.name; }
  const std::vector<int64_t>& dims() const { return tensor.stored.dims; }
};

// The matrices of low-rank adaptation: no folder has them among its weights.
absl::flat_hash_set<plan::TensorId> MatricesOf(const plan::Plan& plan) {
  absl::flat_hash_set<plan::TensorId> matrices;
  for (const plan::Adapter& adapter : plan.adapters) matrices.insert({adapter.a, adapter.b});
  return matrices;
}

std::vector<Expected> ExpectedOf(const plan::Plan& plan) {
  const absl::flat_hash_set<plan::TensorId> matrices = MatricesOf(plan);
  std::vector<Expected> expected;
  for (plan::StoredInShards& tensor : plan::StoredParameters(plan)) {
    if (matrices.contains(plan.of_group[tensor.pieces[0].position])) continue;
    expected.push_back({.tensor = std::move(tensor)});
  }
  for (const plan::TensorId id : plan.buffers) {
    for (plan::StoredTensor& stored : plan::Stored(plan.tensors[id])) {
      expected.push_back({.tensor = {.stored = std::move(stored)}, .buffer = id});
    }
  }
  return expected;
}

std::string ShapeText(const std::vector<int64_t>& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

absl::Status Refused(const char* field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("spec.fine_tune.", field, ": ", what));
}

// The work of AssignNames.
class Matching {
 public:
  Matching(const v1::FineTune& fine_tune, const FamilyNames& names, const plan::Plan& plan,
           const Tensors& tensors)
      : fine_tune_(fine_tune),
        names_(names),
        plan_(plan),
        tensors_(tensors),
        expected_(ExpectedOf(plan)) {
    for (const Expected& e : expected_) expected_names_.insert(e.name());
    for (const plan::Adapter& adapter : plan.adapters) {
      result_.drawn_whose.insert(result_.drawn_whose.end(), {adapter.a, adapter.b});
    }
  }

  absl::StatusOr<Assignment> Run() {
    TY_RETURN_IF_ERROR(CheckPatterns());
    TY_RETURN_IF_ERROR(NameAll());
    for (const Expected& e : expected_) Take(e);
    for (const auto& [name, found] : found_) LookAtRest(name, found);
    TY_RETURN_IF_ERROR(Verdict());
    return std::move(result_);
  }

 private:
  struct Problem {
    std::string name;
    std::string text;  // with shapes
  };

  bool Reinitialized(const std::string& name) const { return IsReinitialized(fine_tune_, name); }
  bool Ignored(const std::string& found) const {
    return absl::c_any_of(fine_tune_.ignore(),
                          [&](const auto& pattern) { return plan::GlobMatches(pattern, found); });
  }

  std::vector<std::string> ExpectedNames() const {
    std::vector<std::string> all;
    for (const Expected& e : expected_) all.push_back(e.name());
    return all;
  }
  std::vector<std::string> FoundNames() const {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }

  // Refuses patterns that match nothing.
  absl::Status CheckPatterns() const {
    const auto check = [](const char* field, const auto& patterns, const auto& names,
                          const char* of) {
      for (int i = 0; i < patterns.size(); ++i) {
        const std::string& pattern = patterns.Get(i);
        if (absl::c_any_of(names, [&](const auto& n) { return plan::GlobMatches(pattern, n); })) {
          continue;
        }
        return Refused(field, absl::StrCat("'", pattern, "' matches no ", of, "; the nearest are ",
                                           NearestTo(pattern, names)));
      }
      return absl::OkStatus();
    };
    TY_RETURN_IF_ERROR(check("reinitialize", fine_tune_.reinitialize(), ExpectedNames(),
                             "parameter of spec.model"));
    return check("ignore", fine_tune_.ignore(), FoundNames(), "tensor of spec.fine_tune.from");
  }

  bool IsTied(const std::string& name) const {
    return absl::c_any_of(names_.ties, [&](const auto& tie) { return name == tie.first; });
  }

  // What our checkpoints call the folder's `found`.
  std::string NameFor(const std::string& found, bool without_prefix) const {
    std::string name = found;
    if (without_prefix && !expected_names_.contains(name) && !IsTied(name)) {
      name = absl::StrCat(names_.prefix, name);
    }
    for (const auto& [old, now] : {std::pair(".gamma", ".weight"), std::pair(".beta", ".bias")}) {
      absl::string_view stem = name;
      if (!expected_names_.contains(name) && absl::ConsumeSuffix(&stem, old) &&
          expected_names_.contains(absl::StrCat(stem, now))) {
        return absl::StrCat(stem, now);
      }
    }
    return name;
  }

  absl::Status NameAll() {
    const std::string prefix = names_.prefix;
    const bool without_prefix =
        !prefix.empty() && absl::c_none_of(tensors_, [&](const auto& tensor) {
          return absl::StartsWith(tensor.first, prefix);
        });
    for (const auto& [found, tensor] : tensors_) {
      const auto [at, added] = found_.emplace(NameFor(found, without_prefix), found);
      if (added || Ignored(found)) continue;
      if (Ignored(at->second)) {
        at->second = found;
      } else {
        return Refused("from", absl::StrCat("tensors ", Quoted(at->second), " and ", Quoted(found),
                                            " are both ", Quoted(at->first), " of spec.model"));
      }
    }
    return absl::OkStatus();
  }

  void Draw(plan::TensorId id) {
    if (!absl::c_linear_search(result_.drawn_whose, id)) result_.drawn_whose.push_back(id);
  }

  void Take(const Expected& e) {
    const std::string& name = e.name();
    if (Reinitialized(name)) {
      result_.drawn.push_back(name);
      if (e.buffer != plan::kNone) Draw(e.buffer);
      for (const plan::ShardPiece& piece : e.tensor.pieces) {
        const plan::TensorId id = plan_.of_group[piece.position];
        if (plan_.host.hosts(plan_.tensors[id])) Draw(id);
      }
      return;
    }
    const auto at = found_.find(name);
    if (at == found_.end()) {
      missing_.push_back({name, absl::StrCat(Quoted(name), " ", ShapeText(e.dims()))});
      return;
    }
    const std::string& found = at->second;
    if (Ignored(found)) {
      needed_.push_back({name, absl::StrCat(Quoted(found))});
      return;
    }
    const TensorEntry& entry = tensors_.at(found).entry;
    if (entry.shape != e.dims()) {
      shapes_.push_back({name, absl::StrCat(Quoted(found), " is ", ShapeText(entry.shape),
                                            ", expected ", ShapeText(e.dims()))});
    } else if (!IsFloatType(entry.dtype)) {
      types_.push_back({name, absl::StrCat(Quoted(found), " is ", entry.dtype)});
    } else {
      result_.read.push_back({.tensor = e.tensor, .buffer = e.buffer, .found = found});
    }
  }

  // Looks at a tensor that no parameter is read from: it must be one that may be passed over.
  void LookAtRest(const std::string& name, const std::string& found) {
    if (expected_names_.contains(name) || Ignored(found)) return;
    if (absl::EndsWith(name, ".num_batches_tracked")) return;
    if (absl::c_any_of(names_.masks, [&](const char* m) { return plan::GlobMatches(m, name); })) {
      return;
    }
    for (const auto& [second, first] : names_.ties) {
      if (name != second) continue;
      AddTie(found, first);
      return;
    }
    const TensorEntry& entry = tensors_.at(found).entry;
    extra_.push_back({found, absl::StrCat(Quoted(found), " ", ShapeText(entry.shape))});
  }

  void AddTie(const std::string& found, const std::string& first) {
    if (Reinitialized(first)) return;
    const auto at = found_.find(first);
    if (at == found_.end()) return;  // reported as missing
    const TensorEntry &entry = tensors_.at(found).entry, &other = tensors_.at(at->second).entry;
    if (entry.shape == other.shape && IsFloatType(entry.dtype)) {
      result_.ties.push_back({found, at->second});
      return;
    }
    extra_.push_back(
        {found, absl::StrCat(Quoted(found), " is ", entry.dtype, " ", ShapeText(entry.shape),
                             ", not ", Quoted(at->second), " once more")});
  }

  static std::string Listed(const std::vector<Problem>& problems, std::vector<std::string>& names) {
    std::vector<std::string> texts;
    for (const Problem& problem : problems) {
      names.push_back(problem.name);
      texts.push_back(problem.text);
    }
    return FirstOf(texts);
  }

  std::string Redrawn(const std::vector<std::string>& names) const {
    return PatternsFor(names, ExpectedNames());
  }

  // What the folder lacks or has in another shape, and how to do without.
  std::string Unread() const {
    std::vector<std::string> complaints, redrawn;
    if (!missing_.empty()) {
      complaints.push_back(absl::StrCat("it lacks ", missing_.size(), " of the ", expected_.size(),
                                        " tensors of spec.model: ", Listed(missing_, redrawn)));
    }
    if (!shapes_.empty()) {
      complaints.push_back(absl::StrCat(shapes_.size(), shapes_.size() == 1 ? " has" : " have",
                                        " another shape: ", Listed(shapes_, redrawn)));
    }
    return absl::StrCat(absl::StrJoin(complaints, "; "), " (reinitialize: ", Redrawn(redrawn),
                        " draws ", redrawn.size() == 1 ? "it" : "them", " anew)");
  }

  std::string Unknown() const {
    std::vector<std::string> names;
    const std::string listed = Listed(extra_, names);
    return absl::StrCat("spec.model has no place for ", extra_.size(), " of its tensors: ", listed,
                        " (ignore: ", PatternsFor(names, FoundNames()), " passes over ",
                        extra_.size() == 1 ? "it" : "them", ")");
  }

  // All that is wrong, with the patterns that would help.
  absl::Status Verdict() const {
    std::vector<std::string> names;
    if (!needed_.empty()) {
      const std::string listed = Listed(needed_, names);
      return Refused("ignore",
                     absl::StrCat(listed, needed_.size() == 1 ? " is" : " are",
                                  " what spec.model needs; reinitialize: ", Redrawn(names),
                                  " draws ", names.size() == 1 ? "it" : "them", " anew"));
    }
    std::vector<std::string> complaints;
    if (!types_.empty()) {
      complaints.push_back(absl::StrCat(types_.size(), " cannot be read as weights: ",
                                        Listed(types_, names), "; expected F32, F16 or BF16"));
    }
    if (!missing_.empty() || !shapes_.empty()) complaints.push_back(Unread());
    if (!extra_.empty()) complaints.push_back(Unknown());
    if (complaints.empty()) return absl::OkStatus();
    return Refused("from", absl::StrCat(fine_tune_.from(), ": ", absl::StrJoin(complaints, "; ")));
  }

  const v1::FineTune& fine_tune_;
  const FamilyNames& names_;
  const plan::Plan& plan_;
  const Tensors& tensors_;
  const std::vector<Expected> expected_;
  absl::flat_hash_set<std::string> expected_names_;
  std::map<std::string, std::string> found_;  // our name to the folder's
  std::vector<Problem> missing_, shapes_, types_, extra_, needed_;
  Assignment result_;
};

}  // namespace

bool IsReinitialized(const v1::FineTune& fine_tune, const std::string& name) {
  return absl::c_any_of(fine_tune.reinitialize(),
                        [&](const auto& pattern) { return plan::GlobMatches(pattern, name); });
}

absl::StatusOr<Assignment> AssignNames(const v1::FineTune& fine_tune, const std::string& family,
                                       const plan::Plan& plan, const Tensors& tensors) {
  return Matching(fine_tune, NamesOf(family), plan, tensors).Run();
}

}  // namespace trainyard::weights
