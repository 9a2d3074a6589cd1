#include "executor/data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/data/files/json_depth.h"
#include "executor/data/files/utf8.h"
#include "executor/data/tokenizer/byte_level.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

using Json = nlohmann::json;  // sorted: the ordered one takes quadratic time for a vocabulary

constexpr int64_t kMostTokens = int64_t{1} << 20;

// At most 60 bytes, whole characters.
std::string Shortened(const std::string& text) {
  if (text.size() <= 60) return text;
  size_t end = 60;
  while (!BeginsCodePoint(text[end])) --end;
  return absl::StrCat(text.substr(0, end), "…");
}

std::string Quoted(const std::string& text) { return absl::StrCat("'", Shortened(text), "'"); }

// A value as it may stand in a message.
std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return absl::StrCat("an array of ", value.size());
  return Shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

absl::Status Wrong(const std::string& field, absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": found ", found, ", expected ", expected));
}

absl::Status NotSupported(const std::string& field, absl::string_view found,
                          absl::string_view expected) {
  return absl::UnimplementedError(absl::StrCat(field, ": found ", found, ", expected ", expected,
                                               "; only byte-level BPE is read"));
}

// The member of an object, or null.
const Json& Member(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

absl::StatusOr<bool> Flag(const Json& object, const char* name, const std::string& at,
                          bool otherwise) {
  const Json& value = Member(object, name);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) return Wrong(absl::StrCat(at, name), Shown(value), "true or false");
  return value.get<bool>();
}

std::string TypeOf(const Json& object) {
  const Json& type = Member(object, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

// "a b" or ["a", "b"]; nullopt: neither.
std::optional<std::pair<std::string, std::string>> Halves(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::make_pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string()) return std::nullopt;
  const std::string text = merge.get<std::string>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    return std::nullopt;
  }
  return std::make_pair(text.substr(0, space), text.substr(space + 1));
}

// model.merges, taken out of the file while it is parsed: as JSON in memory they would be ten times
// as large as all the rest.
class MergeTexts {
 public:
  MergeTexts() = default;

  // What Json::parse calls; returns whether the value stays where it was.
  bool Take(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::key && depth == 1) {
      in_model_ = value == "model";
      in_merges_ = false;
    }
    if (event == Event::key && depth == 2) in_merges_ = in_model_ && value == "merges";
    if (!in_merges_) return true;
    if (event == Event::array_start && depth == 2) Clear();
    const bool ends =
        event == Event::value || event == Event::array_end || event == Event::object_end;
    if (!ends || depth != 3) return true;
    Add(value);
    return false;
  }

  size_t size() const { return ends_.size(); }

  // Of merge `i`, unless it is `wrong()`.
  std::pair<absl::string_view, absl::string_view> operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1].whole;
    const absl::string_view text(text_);
    return {text.substr(begin, ends_[i].left - begin),
            text.substr(ends_[i].left, ends_[i].whole - ends_[i].left)};
  }

  // Whether merge `i` was given as one text: the first line of a merges.txt is.
  bool one_text(size_t i) const { return ends_[i].one_text; }

  // The first that is no merge, and what it is instead; size(): all are.
  size_t wrong() const { return std::min(wrong_, size()); }
  const std::string& found() const { return found_; }

 private:
  struct Ends {
    size_t left = 0, whole = 0;
    bool one_text = false;
  };

  void Clear() { *this = MergeTexts(in_model_, in_merges_); }
  void Add(const Json& merge) {
    if (const auto halves = Halves(merge)) {
      text_ += halves->first;
      const size_t left = text_.size();
      text_ += halves->second;
      ends_.push_back({left, text_.size(), merge.is_string()});
      return;
    }
    if (wrong_ > ends_.size()) {
      wrong_ = ends_.size();
      found_ = Shown(merge);
    }
    ends_.push_back({text_.size(), text_.size(), false});
  }

  MergeTexts(bool in_model, bool in_merges) : in_model_(in_model), in_merges_(in_merges) {}

  bool in_model_ = false, in_merges_ = false;
  std::string text_;  // left and right of all, one after the other
  std::vector<Ends> ends_;
  size_t wrong_ = std::numeric_limits<size_t>::max();
  std::string found_;
};

// Reads one file; its parts are read in the order in which they need each other.
class Reader {
 public:
  Reader(const Json& root, const MergeTexts& merges) : root_(root), merges_(merges) {}

  absl::StatusOr<BpeModel> Read() {
    if (!root_.is_object()) return Wrong("the file", Shown(root_), "an object");
    for (const char* name : {"normalizer", "truncation", "padding"}) {
      const Json& value = Member(root_, name);
      if (!value.is_null()) return NotSupported(name, DescribeStep(value), "null");
    }
    const Json& decoder = Member(root_, "decoder");
    if (!decoder.is_null() && TypeOf(decoder) != "ByteLevel") {
      return NotSupported("decoder", DescribeStep(decoder), "ByteLevel or null");
    }
    TY_RETURN_IF_ERROR(ReadPreTokenizer(Member(root_, "pre_tokenizer")));
    TY_RETURN_IF_ERROR(CheckModel(Member(root_, "model")));
    TY_RETURN_IF_ERROR(ReadVocabulary(Member(Member(root_, "model"), "vocab")));
    TY_RETURN_IF_ERROR(ReadAdded(Member(root_, "added_tokens")));
    TY_RETURN_IF_ERROR(CheckThatNoIdIsLeftOut());
    TY_RETURN_IF_ERROR(FindBytes());
    TY_RETURN_IF_ERROR(ReadMerges(Member(Member(root_, "model"), "merges")));
    if (ignore_merges_) KeepWholeWords();
    return std::move(model_);
  }

 private:
  static std::string DescribeStep(const Json& step) {
    const std::string type = TypeOf(step);
    return type.empty() ? Shown(step) : Quoted(type);
  }

  absl::Status ReadByteLevel(const Json& step, const std::string& at, bool cuts) {
    if (TypeOf(step) != "ByteLevel") return NotSupported(at, DescribeStep(step), "ByteLevel");
    TY_ASSIGN_OR_RETURN(model_.add_prefix_space, Flag(step, "add_prefix_space", at + ".", true));
    TY_ASSIGN_OR_RETURN(const bool use_regex, Flag(step, "use_regex", at + ".", true));
    if (cuts) {
      model_.pattern = use_regex ? WordPattern::kGpt2 : WordPattern::kWhole;
    } else if (use_regex || model_.add_prefix_space) {
      return NotSupported(at, "use_regex or add_prefix_space after a Split", "neither");
    }
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer(const Json& step) {
    if (TypeOf(step) != "Sequence") return ReadByteLevel(step, "pre_tokenizer", /*cuts=*/true);
    const std::string at = "pre_tokenizer.pretokenizers";
    const Json& steps = Member(step, "pretokenizers");
    if (!steps.is_array() || steps.size() != 2 || TypeOf(steps[0]) != "Split") {
      return NotSupported(at, Shown(steps), "a Split and a ByteLevel");
    }
    const Json& pattern = Member(Member(steps[0], "pattern"), "Regex");
    if (pattern == kLlama3Regex) {
      model_.pattern = WordPattern::kLlama3;
    } else if (pattern == kGpt2Regex) {
      model_.pattern = WordPattern::kGpt2;
    } else {
      return NotSupported(at + "[0].pattern", Shown(pattern),
                          "{\"Regex\": …} with the expression of GPT-2 or of Llama 3");
    }
    if (Member(steps[0], "behavior") != "Isolated") {
      return NotSupported(at + "[0].behavior", Shown(Member(steps[0], "behavior")), "\"Isolated\"");
    }
    TY_ASSIGN_OR_RETURN(const bool invert, Flag(steps[0], "invert", at + "[0].", false));
    if (invert) return NotSupported(at + "[0].invert", "true", "false");
    return ReadByteLevel(steps[1], at + "[1]", /*cuts=*/false);
  }

  absl::Status CheckModel(const Json& model) {
    if (!model.is_object()) return Wrong("model", Shown(model), "an object");
    const Json& type = Member(model, "type");  // files from before 2021 have none
    if (!type.is_null() && type != "BPE") return NotSupported("model.type", Shown(type), "\"BPE\"");
    const Json& dropout = Member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) {
      return NotSupported("model.dropout", Shown(dropout), "null");
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& affix = Member(model, name);
      if (!affix.is_null() && affix != "") {
        return NotSupported(absl::StrCat("model.", name), Shown(affix), "null");
      }
    }
    TY_ASSIGN_OR_RETURN(const bool fallback, Flag(model, "byte_fallback", "model.", false));
    if (fallback) return NotSupported("model.byte_fallback", "true", "false");
    TY_ASSIGN_OR_RETURN(ignore_merges_, Flag(model, "ignore_merges", "model.", false));
    return absl::OkStatus();
  }

  // Gives `id` its bytes; refuses one that is out of range or taken.
  absl::Status Place(const std::string& field, const Json& id, std::string bytes) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{kMostTokens}) {
      return Wrong(field, Shown(id), absl::StrCat("an id in [0, ", kMostTokens, ")"));
    }
    const auto i = id.get<size_t>();
    if (i >= model_.tokens.size()) {
      model_.tokens.resize(i + 1);
      placed_.resize(i + 1);
    }
    if (placed_[i]) return Wrong(field, absl::StrCat(i), "an id that no other token has");
    placed_[i] = true;
    model_.tokens[i] = std::move(bytes);
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary(const Json& vocab) {
    if (!vocab.is_object()) return Wrong("model.vocab", Shown(vocab), "an object of tokens");
    ids_.reserve(vocab.size());
    for (const auto& [token, id] : vocab.items()) {
      const std::string field = absl::StrCat("model.vocab[", Quoted(token), "]");
      if (token.empty()) return Wrong(field, "an empty token", "a token of at least one byte");
      // What is not written as bytes stands for itself, as in the decoder of `tokenizers`.
      const std::optional<std::string> bytes = FromByteLevel(token);
      TY_RETURN_IF_ERROR(Place(field, id, bytes.value_or(token)));
      ids_.emplace(token, id.get<int32_t>());
    }
    return absl::OkStatus();
  }

  absl::Status ReadAdded(const Json& added) {
    if (added.is_null()) return absl::OkStatus();
    if (!added.is_array()) return Wrong("added_tokens", Shown(added), "an array");
    if (added.size() > kMostAddedTokens) {
      return Wrong("added_tokens", absl::StrCat(added.size(), " tokens"),
                   absl::StrCat("at most ", kMostAddedTokens));
    }
    absl::flat_hash_set<std::string> seen;
    for (size_t i = 0; i < added.size(); ++i) {
      const std::string at = absl::StrCat("added_tokens[", i, "]");
      const Json& content = Member(added[i], "content");
      if (!content.is_string() || content == "") {
        return Wrong(at + ".content", Shown(content), "a text");
      }
      for (const char* name : {"single_word", "lstrip", "rstrip"}) {
        TY_ASSIGN_OR_RETURN(const bool flag, Flag(added[i], name, at + ".", false));
        if (flag) return NotSupported(absl::StrCat(at, ".", name), "true", "false");
      }
      AddedToken token{.content = content.get<std::string>()};
      if (token.content.size() > kLongestAddedToken) {
        return Wrong(at + ".content", absl::StrCat("a text of ", token.content.size(), " bytes"),
                     absl::StrCat("at most ", kLongestAddedToken));
      }
      TY_ASSIGN_OR_RETURN(token.normalized, Flag(added[i], "normalized", at + ".", true));
      if (!seen.insert(token.content).second) {
        return Wrong(at + ".content", Shown(content) + " again", "each token once");
      }
      TY_RETURN_IF_ERROR(PlaceAdded(at + ".id", Member(added[i], "id"), token));
      model_.added.push_back(std::move(token));
    }
    return absl::OkStatus();
  }

  // An added token may be one of the vocabulary as well, under the same id.
  absl::Status PlaceAdded(const std::string& field, const Json& id, AddedToken& token) {
    const auto known = ids_.find(token.content);
    if (known == ids_.end()) {
      TY_RETURN_IF_ERROR(Place(field, id, token.content));
    } else if (id != known->second) {
      return Wrong(field, Shown(id), absl::StrCat(known->second, ", as in model.vocab"));
    }
    token.id = id.get<int32_t>();
    model_.tokens[static_cast<size_t>(token.id)] = token.content;
    return absl::OkStatus();
  }

  absl::Status CheckThatNoIdIsLeftOut() const {
    for (size_t id = 0; id < placed_.size(); ++id) {
      if (!placed_[id]) {
        return Wrong("model.vocab", absl::StrCat("no token of id ", id),
                     absl::StrCat("one for each id in [0, ", placed_.size(), ")"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status FindBytes() {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token = ToByteLevel(std::string(1, static_cast<char>(byte)));
      const auto found = ids_.find(token);
      if (found == ids_.end()) {
        return Wrong("model.vocab", absl::StrCat("no token '", token, "' for the byte ", byte),
                     "a token for each of the 256 bytes");
      }
      model_.byte_ids[static_cast<size_t>(byte)] = found->second;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int32_t> IdOf(const std::string& field, const std::string& token) const {
    const auto found = ids_.find(token);
    if (found != ids_.end()) return found->second;
    return Wrong(field, absl::StrCat(Quoted(token), ", which is not in model.vocab"), "tokens");
  }

  absl::Status ReadMerges(const Json& merges) {
    if (!merges.is_array()) return Wrong("model.merges", Shown(merges), "an array of merges");
    absl::flat_hash_map<std::pair<int32_t, int32_t>, size_t> first;
    first.reserve(merges_.size());
    model_.merges.reserve(merges_.size());
    for (size_t i = 0; i < merges_.size(); ++i) {
      const std::string field = absl::StrCat("model.merges[", i, "]");
      if (i == merges_.wrong()) {
        return Wrong(field, merges_.found(), "\"left right\" or [\"left\", \"right\"]");
      }
      const auto [left, right] = merges_[i];
      // The first line of a merges.txt; `tokenizers` passes over it wherever it is.
      if (merges_.one_text(i) && absl::StartsWith(left, "#version")) continue;
      BpeModel::Merge merge;
      TY_ASSIGN_OR_RETURN(merge.left, IdOf(field, std::string(left)));
      TY_ASSIGN_OR_RETURN(merge.right, IdOf(field, std::string(right)));
      TY_ASSIGN_OR_RETURN(merge.whole, IdOf(field, absl::StrCat(left, right)));
      const auto [known, fresh] = first.try_emplace({merge.left, merge.right}, i);
      if (!fresh) {
        return Wrong(field, absl::StrCat("the pair of model.merges[", known->second, "]"),
                     "each pair once");
      }
      model_.merges.push_back(merge);
    }
    return absl::OkStatus();
  }

  void KeepWholeWords() {
    for (const auto& [token, id] : ids_) {
      if (const auto bytes = FromByteLevel(token)) model_.whole_words[*bytes] = id;
    }
  }

  const Json& root_;
  const MergeTexts& merges_;
  BpeModel model_;
  bool ignore_merges_ = false;
  std::vector<bool> placed_;                       // by id
  absl::flat_hash_map<std::string, int32_t> ids_;  // of model.vocab, as it is written there
};

// What is the same for every model that was trained here; model.vocab and model.merges follow.
constexpr char kHead[] = R"({
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
)";

}  // namespace

absl::StatusOr<std::unique_ptr<const Bpe>> BpeFromJson(std::string json) {
  TY_RETURN_IF_ERROR(CheckJsonDepth(json));
  MergeTexts merges;
  const auto take = [&](int depth, Json::parse_event_t event, Json& value) {
    return merges.Take(depth, event, value);
  };
  const Json root = Json::parse(json, take, /*allow_exceptions=*/false);
  if (root.is_discarded()) return absl::InvalidArgumentError("found no JSON");
  TY_ASSIGN_OR_RETURN(BpeModel model, Reader(root, merges).Read());
  return std::make_unique<const Bpe>(std::move(model), std::move(json));
}

std::string BpeToJson(const BpeModel& model) {
  std::vector<std::string> names;  // quoted
  for (const std::string& bytes : model.tokens) names.push_back(Json(ToByteLevel(bytes)).dump());
  std::string text = absl::StrCat(kHead, "    \"vocab\": {");
  for (size_t id = 0; id < names.size(); ++id) {
    absl::StrAppend(&text, id == 0 ? "\n" : ",\n", "      ", names[id], ": ", id);
  }
  absl::StrAppend(&text, "\n    },\n    \"merges\": [");
  for (size_t i = 0; i < model.merges.size(); ++i) {
    const BpeModel::Merge& merge = model.merges[i];
    absl::StrAppend(&text, i == 0 ? "\n" : ",\n", "      [", names[merge.left], ", ",
                    names[merge.right], "]");
  }
  absl::StrAppend(&text, "\n    ]\n  }\n}\n");
  return text;
}

}  // namespace trainyard::data
