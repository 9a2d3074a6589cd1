// One text file as token ids in memory, cut once into training and validation.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/data/bpe_trainer.h"
#include "executor/data/regular_file.h"
#include "executor/data/sources.h"
#include "executor/data/tokenizer_json.h"
#include "executor/data/vocabulary.h"
#include "executor/data/windows.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kLargestText = int64_t{1} << 30;

// Up to here BPE trains and encodes within seconds: what somebody may wait for who submits a job.
constexpr int64_t kLargestCountedText = int64_t{16} << 20;

absl::StatusOr<std::string> ReadWhole(const std::string& uri, int64_t largest,
                                      absl::string_view advice) {
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(uri));
  if (file.bytes == 0) return absl::InvalidArgumentError(absl::StrCat(file.path, ": is empty"));
  if (file.bytes > largest) {
    return absl::ResourceExhaustedError(absl::StrCat(file.path, ": found ", file.bytes,
                                                     " bytes, expected at most ", largest, advice));
  }
  std::string content(static_cast<size_t>(file.bytes), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file, 0, content.data(), file.bytes));
  return content;
}

absl::StatusOr<std::string> ReadText(const v1::TextData& spec) {
  return ReadWhole(spec.path(), kLargestText, "; write token files for larger text");
}

// A text and where it is cut, in characters (bytes, to BYTES) and in bytes.
struct Cut {
  int64_t characters = 0;
  int64_t train_characters = 0;  // as nanoGPT cuts it: int(0.9 * n) train
  size_t train_bytes = 0;
};

Cut CutOf(const v1::TextData& spec, absl::string_view text) {
  const auto begins = [](char c) { return (c & 0xC0) != 0x80; };
  const bool bytes = spec.tokenizer() == v1::TextData::BYTES;
  Cut cut;
  cut.characters =
      bytes ? static_cast<int64_t>(text.size()) : std::count_if(text.begin(), text.end(), begins);
  cut.train_characters = static_cast<int64_t>(
      std::floor(static_cast<double>(cut.characters) * (1.0 - spec.validation_fraction())));
  if (cut.characters == static_cast<int64_t>(text.size())) {
    cut.train_bytes = static_cast<size_t>(cut.train_characters);
    return cut;
  }
  int64_t before = 0;
  while (cut.train_bytes < text.size()) {
    if (begins(text[cut.train_bytes]) && before++ == cut.train_characters) break;
    ++cut.train_bytes;
  }
  return cut;
}

absl::StatusOr<std::unique_ptr<const Bpe>> ReadBpe(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(std::string json, ReadWhole(uri, kLargestTokenizerFile, ""));
  absl::StatusOr<std::unique_ptr<const Bpe>> bpe = BpeFromJson(std::move(json));
  if (!bpe.ok()) return Annotate(bpe.status(), uri);
  return bpe;
}

// `train` is all that a tokenizer may learn from; characters are those of the whole text.
absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeTokenizer(const v1::TextData& spec,
                                                               absl::string_view text,
                                                               absl::string_view train) {
  if (spec.tokenizer() == v1::TextData::BYTES) {
    return std::make_unique<const Vocabulary>(Vocabulary::Bytes());
  }
  if (spec.tokenizer() == v1::TextData::BPE) {
    if (!spec.tokenizer_file().empty()) return ReadBpe(spec.tokenizer_file());
    absl::StatusOr<BpeModel> model = TrainBpe(train, spec.vocab_size());
    if (!model.ok()) return Annotate(model.status(), spec.path());
    std::string json = BpeToJson(*model);
    return std::make_unique<const Bpe>(*std::move(model), std::move(json));
  }
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::Characters(text);
  if (!vocabulary.ok()) return Annotate(vocabulary.status(), spec.path());
  return std::make_unique<const Vocabulary>(*std::move(vocabulary));
}

// The number of tokens that the model is for: declared, or what the tokenizer has.
absl::StatusOr<int64_t> VocabFor(const v1::TextData& spec, const Tokenizer& tokenizer) {
  const int64_t found = tokenizer.size();
  const bool bpe = spec.tokenizer() == v1::TextData::BPE;
  const char* const what = bpe ? " tokens" : " distinct characters";
  const std::string& file = bpe ? spec.tokenizer_file() : spec.path();
  if (spec.has_vocab_size() && found > spec.vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": found ", found, what, ", spec.data.text.vocab_size declares ", spec.vocab_size()));
  }
  if (!bpe && found > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": found ", found, what, ", expected at most 65536"));
  }
  return spec.has_vocab_size() ? spec.vocab_size() : found;
}

// Token ids in two bytes each, or four where there may be more.
class TokenIds {
 public:
  // Room for `expected` of them.
  TokenIds(int64_t vocab, int64_t expected) : wide_(vocab > 65536) {
    const auto n = static_cast<size_t>(expected);
    wide_ ? four_.reserve(n) : two_.reserve(n);
  }

  void Add(int32_t id) {
    if (wide_) {
      four_.push_back(id);
    } else {
      two_.push_back(static_cast<uint16_t>(id));
    }
  }
  int32_t operator[](size_t i) const { return wide_ ? four_[i] : two_[i]; }
  int64_t size() const { return static_cast<int64_t>(wide_ ? four_.size() : two_.size()); }
  int64_t bytes() const { return size() * (wide_ ? 4 : 2); }

 private:
  bool wide_;
  std::vector<uint16_t> two_;
  std::vector<int32_t> four_;
};

struct EncodedText {
  std::unique_ptr<const Tokenizer> tokenizer;
  int64_t vocab = 0;
  int64_t train = 0;  // the first ids; the rest validates
  TokenIds ids;
};

absl::StatusOr<EncodedText> EncodeText(const v1::TextData& spec) {
  TY_ASSIGN_OR_RETURN(const std::string content, ReadText(spec));
  const absl::string_view text = content;
  if (spec.tokenizer() == v1::TextData::BPE) {
    const absl::Status utf8 = CheckUtf8(text);
    if (!utf8.ok()) return Annotate(utf8, spec.path());
  }
  const Cut cut = CutOf(spec, text);
  const size_t train_bytes = cut.train_bytes;
  TY_ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                      MakeTokenizer(spec, text, text.substr(0, train_bytes)));
  TY_ASSIGN_OR_RETURN(const int64_t vocab, VocabFor(spec, *tokenizer));
  const bool bpe = spec.tokenizer() == v1::TextData::BPE;
  EncodedText encoded{.tokenizer = std::move(tokenizer),
                      .vocab = vocab,
                      .ids = TokenIds(vocab, bpe ? cut.characters / 4 : cut.characters)};
  const auto encode = [&](absl::string_view part) {
    return encoded.tokenizer->ForEachId(part, [&](int32_t id) { encoded.ids.Add(id); });
  };
  absl::Status status = encode(text.substr(0, train_bytes));
  encoded.train = encoded.ids.size();
  if (status.ok()) status = encode(text.substr(train_bytes));
  if (!status.ok()) return Annotate(status, spec.path());
  return encoded;
}

class TextDataset : public Windows {
 public:
  TextDataset(int64_t context, EncodedText text, const std::string& warning)
      : Windows(context, {text.train}, Rest(text), text.vocab), text_(std::move(text)) {
    if (!warning.empty()) warnings_.Add(warning);
  }

  using Windows::Check;

  const Tokenizer* tokenizer() const override { return text_.tokenizer.get(); }
  int64_t bytes() const override { return text_.ids.bytes(); }

 protected:
  absl::Status ReadWindow(Split split, size_t, int64_t at, int64_t n, int32_t* inputs,
                          int32_t* targets) const override {
    const int64_t first = at + (split == Split::kTrain ? 0 : text_.train);
    for (int64_t i = 0; i < n; ++i) {
      inputs[i] = text_.ids[static_cast<size_t>(first + i)];
      targets[i] = text_.ids[static_cast<size_t>(first + i + 1)];
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<int64_t> Rest(const EncodedText& text) {
    const int64_t rest = text.ids.size() - text.train;
    return rest > 0 ? std::vector<int64_t>{rest} : std::vector<int64_t>{};
  }

  const EncodedText text_;
};

// The facts of BPE data. Tokens are counted only where that takes seconds; of a larger text the
// vocabulary alone is looked at.
absl::StatusOr<plan::DataFacts> BpeFacts(const v1::TextData& spec) {
  plan::DataFacts facts{.kind = plan::DataFacts::Kind::kTokens};
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(spec.path()));
  if (file.bytes <= kLargestCountedText) {
    TY_ASSIGN_OR_RETURN(const EncodedText text, EncodeText(spec));
    facts.vocab = text.vocab;
    facts.train_size = text.train;
    facts.validation_size = text.ids.size() - text.train;
    return facts;
  }
  facts.vocab = spec.vocab_size();
  if (!spec.tokenizer_file().empty()) {
    TY_ASSIGN_OR_RETURN(const std::unique_ptr<const Bpe> bpe, ReadBpe(spec.tokenizer_file()));
    TY_ASSIGN_OR_RETURN(facts.vocab, VocabFor(spec, *bpe));
  }
  return facts;
}

}  // namespace

absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& spec) {
  if (spec.tokenizer() == v1::TextData::BPE) return BpeFacts(spec);
  TY_ASSIGN_OR_RETURN(const std::string text, ReadText(spec));
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<const Tokenizer> tokenizer,
                      MakeTokenizer(spec, text, text));
  TY_ASSIGN_OR_RETURN(const int64_t vocab, VocabFor(spec, *tokenizer));
  const Cut cut = CutOf(spec, text);
  return plan::DataFacts{.kind = plan::DataFacts::Kind::kTokens,
                         .vocab = vocab,
                         .train_size = cut.train_characters,
                         .validation_size = cut.characters - cut.train_characters};
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& spec, int64_t context) {
  TY_ASSIGN_OR_RETURN(EncodedText text, EncodeText(spec));
  const int64_t found = text.tokenizer->size();
  std::string warning;
  if (spec.tokenizer() == v1::TextData::BPE && found < text.vocab) {
    warning = absl::StrCat("spec.data.text.vocab_size: ", text.vocab - found, " of ", text.vocab,
                           " tokens stay unused, since ", spec.path(), " gave ", found);
  }
  auto dataset = std::make_unique<TextDataset>(context, std::move(text), warning);
  TY_RETURN_IF_ERROR(dataset->Check(spec.path()));
  return dataset;
}

}  // namespace trainyard::data
