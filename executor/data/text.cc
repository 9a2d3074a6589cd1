// One text file as token ids in memory, cut once into training and validation.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
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
  text.tokens = static_cast<int64_t>(text.content.size());
  if (spec.tokenizer() != v1::TextData::BYTES) {
    absl::StatusOr<Vocabulary> characters = Vocabulary::Characters(text.content);
    if (!characters.ok()) return Annotate(characters.status(), spec.path());
    text.vocabulary = *std::move(characters);
    // It is UTF-8: a code point per byte that continues no other.
    text.tokens = std::count_if(text.content.begin(), text.content.end(),
                                [](char c) { return (c & 0xC0) != 0x80; });
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
  // As nanoGPT cuts it: int(0.9 * n) tokens train.
  text.train = static_cast<int64_t>(
      std::floor(static_cast<double>(text.tokens) * (1.0 - spec.validation_fraction())));
  return text;
}

std::vector<uint16_t> IdsOf(const Text& text) {
  std::vector<uint16_t> ids;
  ids.reserve(static_cast<size_t>(text.tokens));
  if (text.vocabulary.bytes()) {
    for (const char c : text.content) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  for (size_t at = 0; at < text.content.size();) {
    char32_t c;
    TY_CHECK(TakeCodePoint(text.content, at, c), "the vocabulary was made from this text");
    ids.push_back(static_cast<uint16_t>(text.vocabulary.IdOf(c)));
  }
  return ids;
}

class TextDataset : public Windows {
 public:
  TextDataset(int64_t context, const Text& text)
      : Windows(context, {text.train}, Rest(text), text.vocab),
        vocabulary_(text.vocabulary),
        ids_(IdsOf(text)),
        train_(text.train) {}

  using Windows::Check;

  const Vocabulary* vocabulary() const override { return &vocabulary_; }

  int64_t bytes() const override { return static_cast<int64_t>(ids_.size() * sizeof(ids_[0])); }

 protected:
  absl::Status ReadWindow(Split split, size_t, int64_t at, int64_t n, int32_t* inputs,
                          int32_t* targets) const override {
    const uint16_t* ids = ids_.data() + at + (split == Split::kTrain ? 0 : train_);
    for (int64_t i = 0; i < n; ++i) {
      inputs[i] = ids[i];
      targets[i] = ids[i + 1];
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<int64_t> Rest(const Text& text) {
    const int64_t rest = text.tokens - text.train;
    return rest > 0 ? std::vector<int64_t>{rest} : std::vector<int64_t>{};
  }

  const Vocabulary vocabulary_;
  const std::vector<uint16_t> ids_;
  const int64_t train_;
};

}  // namespace

absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& spec) {
  TY_ASSIGN_OR_RETURN(const Text text, Tokenize(spec));
  return plan::DataFacts{.kind = plan::DataFacts::Kind::kTokens,
                         .vocab = text.vocab,
                         .train_size = text.train,
                         .validation_size = text.tokens - text.train};
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& spec, int64_t context) {
  TY_ASSIGN_OR_RETURN(const Text text, Tokenize(spec));
  auto dataset = std::make_unique<TextDataset>(context, text);
  TY_RETURN_IF_ERROR(dataset->Check(spec.path()));
  return dataset;
}

}  // namespace trainyard::data
