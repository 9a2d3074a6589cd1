#include "executor/data/tokenizer/vocabulary.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "executor/data/files/json_depth.h"
#include "executor/data/files/utf8.h"
#include "storage/base/status.h"

namespace trainyard::data {

Vocabulary::Vocabulary(std::vector<char32_t> code_points) : code_points_(std::move(code_points)) {
  if (code_points_.empty()) return;
  id_of_.assign(code_points_.back() + 1, -1);
  for (size_t i = 0; i < code_points_.size(); ++i)
    id_of_[code_points_[i]] = static_cast<int32_t>(i);
}

Vocabulary Vocabulary::Bytes() { return Vocabulary({}); }

absl::Status CharacterSet::Add(absl::string_view text, int64_t offset) {
  for (size_t at = 0; at < text.size();) {
    if (text.size() - at >= 8 && EightAscii(text.data() + at)) {
      for (int i = 0; i < 8; ++i) ascii_[static_cast<unsigned char>(text[at++])] = true;
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < ascii_.size()) {
      ascii_[byte] = true;
      ++at;
      continue;
    }
    char32_t code_point;
    if (!TakeCodePoint(text, at, code_point)) return CheckUtf8(text, offset);
    if (others_.empty()) others_.resize(kLargestCodePoint + 1);
    others_[code_point] = true;
  }
  return absl::OkStatus();
}

std::vector<char32_t> CharacterSet::CodePoints() const {
  std::vector<char32_t> code_points;
  for (char32_t c = 0; c < ascii_.size(); ++c) {
    if (ascii_[c]) code_points.push_back(c);
  }
  for (char32_t c = 0; c < others_.size(); ++c) {
    if (others_[c]) code_points.push_back(c);
  }
  return code_points;
}

absl::StatusOr<Vocabulary> Vocabulary::Characters(absl::string_view text) {
  CharacterSet characters;
  TY_RETURN_IF_ERROR(characters.Add(text));
  if (text.empty()) return absl::InvalidArgumentError("there is no text");
  return Vocabulary(characters.CodePoints());
}

int64_t Vocabulary::size() const {
  return bytes() ? 256 : static_cast<int64_t>(code_points_.size());
}

absl::Status Vocabulary::ForEachId(absl::string_view text,
                                   absl::FunctionRef<void(int32_t)> add) const {
  return Walk(text, 0, add);
}

absl::Status Vocabulary::Check(absl::string_view text, int64_t offset) const {
  return Walk(text, offset, [](int32_t) {});
}

absl::Status Vocabulary::Walk(absl::string_view text, int64_t offset,
                              absl::FunctionRef<void(int32_t)> add) const {
  if (bytes()) {
    for (const char c : text) add(static_cast<unsigned char>(c));
    return absl::OkStatus();
  }
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    char32_t c;
    if (!TakeCodePoint(text, at, c)) return CheckUtf8(text, offset);
    const int32_t id = IdOf(c);
    if (id < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the character U+%04X at offset %d is not in the vocabulary of %d characters",
          static_cast<uint32_t>(c), offset + static_cast<int64_t>(start), size()));
    }
    add(id);
  }
  return absl::OkStatus();
}

std::string Vocabulary::BytesOf(int32_t id) const {
  if (bytes() && id >= 0 && id < 256) return std::string(1, static_cast<char>(id));
  std::string text;
  AppendUtf8(id >= 0 && id < size() ? code_points_[static_cast<size_t>(id)] : 0xFFFD, text);
  return text;
}

std::vector<NamedText> Vocabulary::Files() const {
  nlohmann::ordered_json json;
  json["type"] = bytes() ? "bytes" : "characters";
  if (!bytes()) {
    std::string all;
    for (const char32_t c : code_points_) AppendUtf8(c, all);
    json["vocabulary"] = all;
  }
  return {{.name = kVocabularyFile, .text = json.dump(2) + "\n"}};
}

absl::StatusOr<Vocabulary> Vocabulary::FromJson(absl::string_view json) {
  TY_RETURN_IF_ERROR(CheckJsonDepth(json));
  const nlohmann::json parsed =
      nlohmann::json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("type") || !parsed["type"].is_string()) {
    return absl::InvalidArgumentError("found no JSON object with a type");
  }
  const std::string type = parsed["type"];
  if (type == "bytes") return Bytes();
  if (type != "characters") {
    return absl::UnimplementedError(
        absl::StrCat("type: found '", type.substr(0, 60), "', expected characters or bytes"));
  }
  if (!parsed.contains("vocabulary") || !parsed["vocabulary"].is_string()) {
    return absl::InvalidArgumentError("vocabulary: found none");
  }
  const std::string all = parsed["vocabulary"];
  TY_ASSIGN_OR_RETURN(Vocabulary vocabulary, Characters(all));
  std::string sorted;
  for (const char32_t c : vocabulary.code_points_) AppendUtf8(c, sorted);
  if (sorted != all) {
    return absl::InvalidArgumentError("vocabulary: expected characters in order, each once");
  }
  return vocabulary;
}

}  // namespace trainyard::data
