// One text file as token ids in memory, cut once into training and validation.

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/data/regular_file.h"
#include "executor/data/sources.h"
#include "executor/data/vocabulary.h"
#include "executor/data/windows.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kLargestText = int64_t{1} << 30;

struct EncodedText {
  Vocabulary vocabulary = Vocabulary::Bytes();
  std::vector<uint16_t> ids;
  int64_t train = 0;  // the first ids; the rest validates
  int64_t vocab = 0;  // declared, or what the file has
};

absl::StatusOr<std::string> ReadText(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(uri));
  if (file.bytes == 0) return absl::InvalidArgumentError(absl::StrCat(file.path, ": is empty"));
  if (file.bytes > kLargestText) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file.path, ": found ", file.bytes, " bytes, expected at most ", kLargestText,
                     "; write token files for larger text"));
  }
  std::string content(static_cast<size_t>(file.bytes), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file, 0, content.data(), file.bytes));
  return content;
}

absl::StatusOr<EncodedText> Encode(const v1::TextData& text) {
  TY_ASSIGN_OR_RETURN(const std::string content, ReadText(text.path()));
  EncodedText encoded;
  if (text.tokenizer() != v1::TextData::BYTES) {
    absl::StatusOr<Vocabulary> characters = Vocabulary::Characters(content);
    if (!characters.ok()) return Annotate(characters.status(), text.path());
    encoded.vocabulary = *std::move(characters);
  }
  const int64_t found = encoded.vocabulary.size();
  encoded.vocab = text.has_vocab_size() ? text.vocab_size() : found;
  if (found > encoded.vocab) {
    return absl::InvalidArgumentError(absl::StrCat(text.path(), ": found ", found,
                                                   " distinct characters, spec.data.text.vocab_size declares ",
                                                   encoded.vocab));
  }
  if (found > 65536) {
    return absl::InvalidArgumentError(absl::StrCat(text.path(), ": found ", found,
                                                   " distinct characters, expected at most 65536"));
  }
  TY_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, encoded.vocabulary.Encode(content));
  encoded.ids.assign(ids.begin(), ids.end());
  // As nanoGPT cuts it: int(0.9 * n) tokens train.
  encoded.train = static_cast<int64_t>(
      std::floor(static_cast<double>(ids.size()) * (1.0 - text.validation_fraction())));
  return encoded;
}

class TextDataset : public Windows {
 public:
  TextDataset(int64_t context, EncodedText text)
      : Windows(context, {text.train}, Rest(text), text.vocab), text_(std::move(text)) {}

  using Windows::Check;

  const Vocabulary* vocabulary() const override { return &text_.vocabulary; }

  int64_t bytes() const override {
    return static_cast<int64_t>(text_.ids.size() * sizeof(text_.ids[0]));
  }

 protected:
  absl::Status ReadWindow(Split split, size_t, int64_t at, int64_t n, int32_t* inputs,
                          int32_t* targets) const override {
    const uint16_t* ids = text_.ids.data() + at + (split == Split::kTrain ? 0 : text_.train);
    for (int64_t i = 0; i < n; ++i) {
      inputs[i] = ids[i];
      targets[i] = ids[i + 1];
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<int64_t> Rest(const EncodedText& text) {
    const int64_t rest = static_cast<int64_t>(text.ids.size()) - text.train;
    return rest > 0 ? std::vector<int64_t>{rest} : std::vector<int64_t>{};
  }

  EncodedText text_;
};

}  // namespace

absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& text) {
  TY_ASSIGN_OR_RETURN(const EncodedText encoded, Encode(text));
  return plan::DataFacts{.kind = plan::DataFacts::Kind::kTokens,
                         .vocab = encoded.vocab,
                         .train_size = encoded.train,
                         .validation_size = static_cast<int64_t>(encoded.ids.size()) - encoded.train};
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& text, int64_t context) {
  TY_ASSIGN_OR_RETURN(EncodedText encoded, Encode(text));
  auto dataset = std::make_unique<TextDataset>(context, std::move(encoded));
  TY_RETURN_IF_ERROR(dataset->Check(text.path()));
  return dataset;
}

}  // namespace trainyard::data
