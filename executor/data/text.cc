// One text file as token ids in memory, cut once into training and validation.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/data/documents.h"
#include "executor/data/regular_file.h"
#include "executor/data/sources.h"
#include "executor/data/utf8.h"
#include "executor/data/vocabulary.h"
#include "executor/data/windows.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kLargestText = int64_t{1} << 30;

// A text and what its tokenizer makes of it.
struct Text {
  std::string content;
  Vocabulary vocabulary = Vocabulary::Bytes();
  int64_t vocab = 0;  // declared, or what the file has
  int64_t tokens = 0;
  int64_t train = 0;  // the first tokens; the rest validates

  // It is UTF-8: a code point per byte that continues no other.
  bool Begins(char c) const { return vocabulary.bytes() || (c & 0xC0) != 0x80; }
  int64_t TokensOf(absl::string_view part) const {
    return std::count_if(part.begin(), part.end(), [this](char c) { return Begins(c); });
  }
};

absl::StatusOr<std::string> ReadText(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(uri));
  if (file.bytes == 0) return absl::InvalidArgumentError(absl::StrCat(file.path, ": is empty"));
  if (file.bytes > kLargestText) {
    return absl::ResourceExhaustedError(absl::StrCat(file.path, ": found ", file.bytes,
                                                     " bytes, expected at most ", kLargestText,
                                                     "; write token files for larger text"));
  }
  std::string content(static_cast<size_t>(file.bytes), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file, 0, content.data(), file.bytes));
  return content;
}

absl::StatusOr<Text> Tokenize(const v1::TextData& spec) {
  Text text;
  TY_ASSIGN_OR_RETURN(text.content, ReadText(spec.path()));
  if (spec.tokenizer() != v1::TextData::BYTES) {
    absl::StatusOr<Vocabulary> characters = Vocabulary::Characters(text.content);
    if (!characters.ok()) return Annotate(characters.status(), spec.path());
    text.vocabulary = *std::move(characters);
  }
  const int64_t found = text.vocabulary.size();
  text.vocab = spec.has_vocab_size() ? spec.vocab_size() : found;
  if (found > text.vocab) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.path(), ": found ", found,
                     " distinct characters, spec.data.text.vocab_size declares ", text.vocab));
  }
  if (found > 65536) {
    return absl::InvalidArgumentError(absl::StrCat(spec.path(), ": found ", found,
                                                   " distinct characters, expected at most 65536"));
  }
  text.tokens = text.TokensOf(text.content);
  // As nanoGPT cuts it: int(0.9 * n) tokens train.
  text.train = static_cast<int64_t>(
      std::floor(static_cast<double>(text.tokens) * (1.0 - spec.validation_fraction())));
  return text;
}

// The parts of both splits that no window leaves: each split as a whole, or its documents.
struct TextParts {
  std::vector<absl::string_view> train, validation;
};

TextParts PartsOf(const Text& text, const plan::Windowing& windowing) {
  size_t cut = 0;
  for (int64_t before = 0; cut < text.content.size(); ++cut) {
    if (text.Begins(text.content[cut]) && before++ == text.train) break;
  }
  const absl::string_view all = text.content;
  const absl::string_view train = all.substr(0, cut), rest = all.substr(cut);
  if (windowing.masked()) return {DocumentsOf(train), DocumentsOf(rest)};
  TextParts parts{.train = {train}};
  if (!rest.empty()) parts.validation = {rest};
  return parts;
}

void AppendIds(const Vocabulary& vocabulary, absl::string_view part, std::vector<uint16_t>& ids) {
  if (vocabulary.bytes()) {
    for (const char c : part) ids.push_back(static_cast<unsigned char>(c));
    return;
  }
  for (size_t at = 0; at < part.size();) {
    char32_t c;
    TY_CHECK(TakeCodePoint(part, at, c), "the vocabulary was made from this text");
    ids.push_back(static_cast<uint16_t>(vocabulary.IdOf(c)));
  }
}

std::vector<int64_t> CountsOf(const Text& text, const std::vector<absl::string_view>& parts) {
  std::vector<int64_t> counts;
  for (const absl::string_view part : parts) counts.push_back(text.TokensOf(part));
  return counts;
}

class TextDataset : public Windows {
 public:
  TextDataset(const plan::Windowing& windowing, const Text& text, const TextParts& parts)
      : Windows(windowing, CountsOf(text, parts.train), CountsOf(text, parts.validation),
                text.vocab),
        vocabulary_(text.vocabulary) {
    ids_.reserve(static_cast<size_t>(text.tokens));
    for (const bool train : {true, false}) {
      for (const absl::string_view part : train ? parts.train : parts.validation) {
        (train ? train_ : validation_).push_back(static_cast<int64_t>(ids_.size()));
        AppendIds(vocabulary_, part, ids_);
      }
    }
  }

  using Windows::Check;

  const Vocabulary* vocabulary() const override { return &vocabulary_; }

  int64_t bytes() const override { return static_cast<int64_t>(ids_.size() * sizeof(ids_[0])); }

 protected:
  absl::Status ReadWindow(Split split, size_t part, int64_t at, int64_t n, int32_t* inputs,
                          int32_t* targets) const override {
    const uint16_t* ids = ids_.data() + at + (split == Split::kTrain ? train_ : validation_)[part];
    std::copy_n(ids, n, inputs);
    if (targets != nullptr) std::copy_n(ids + 1, n, targets);
    return absl::OkStatus();
  }

 private:
  const Vocabulary vocabulary_;
  std::vector<uint16_t> ids_;
  std::vector<int64_t> train_, validation_;  // where each part begins in ids_
};

}  // namespace

absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& spec,
                                          const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(const Text text, Tokenize(spec));
  plan::DataFacts facts{.kind = KindOf(windowing),
                        .vocab = text.vocab,
                        .train_size = text.train,
                        .validation_size = text.tokens - text.train};
  if (windowing.masked()) {
    const TextParts parts = PartsOf(text, windowing);
    facts.train_size = WindowsOf(CountsOf(text, parts.train), windowing.context);
    facts.validation_size = WindowsOf(CountsOf(text, parts.validation), windowing.context);
  }
  return facts;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& spec,
                                                  const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(const Text text, Tokenize(spec));
  auto dataset = std::make_unique<TextDataset>(windowing, text, PartsOf(text, windowing));
  TY_RETURN_IF_ERROR(dataset->Check(spec.path()));
  return dataset;
}

}  // namespace trainyard::data
