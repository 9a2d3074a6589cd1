// One text file as token ids in memory, cut once into training and validation.

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "executor/data/files/regular_file.h"
#include "executor/data/files/utf8.h"
#include "executor/data/text/documents.h"
#include "executor/data/text/text_count.h"
#include "executor/data/text/text_sources.h"
#include "executor/data/text/windows.h"
#include "executor/data/tokenizer/bpe_trainer.h"
#include "executor/data/tokenizer/tokenizer_files.h"
#include "executor/data/tokenizer/tokenizer_json.h"
#include "executor/data/tokenizer/vocabulary.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kLargestText = int64_t{1} << 30;

// Up to here BPE trains and encodes within seconds: what somebody may wait for who submits a job.
constexpr int64_t kLargestCountedText = int64_t{16} << 20;

constexpr char kForLargerText[] = "; write token files for larger text";

absl::Status CheckSize(const std::string& path, int64_t bytes, int64_t largest,
                       absl::string_view advice) {
  if (bytes <= largest) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path, ": found ", bytes, " bytes, expected at most ", largest, advice));
}

absl::StatusOr<std::string> ReadWhole(const std::string& uri, int64_t largest,
                                      absl::string_view advice) {
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(uri));
  if (file.bytes == 0) return absl::InvalidArgumentError(absl::StrCat(file.path, ": is empty"));
  TY_RETURN_IF_ERROR(CheckSize(file.path, file.bytes, largest, advice));
  std::string content(static_cast<size_t>(file.bytes), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file, 0, content.data(), file.bytes));
  return content;
}

absl::StatusOr<std::string> ReadText(const v1::TextData& spec) {
  return ReadWhole(spec.path(), kLargestText, kForLargerText);
}

// Characters, or bytes to BYTES.
int64_t CharactersOf(const v1::TextData& spec, absl::string_view text) {
  if (spec.tokenizer() == v1::TextData::BYTES) return static_cast<int64_t>(text.size());
  return CountCodePoints(text);
}

// The parts of a split that no window leaves: its documents, or all of it.
std::vector<absl::string_view> PartsOf(absl::string_view split, const plan::Windowing& windowing) {
  return windowing.masked() ? DocumentsOf(split) : std::vector<absl::string_view>{split};
}

// A text and where it is cut, in characters (bytes, to BYTES) and in bytes.
struct Cut {
  int64_t characters = 0;
  int64_t train_characters = 0;
  size_t train_bytes = 0;
};

Cut CutOf(const v1::TextData& spec, absl::string_view text) {
  Cut cut;
  cut.characters = CharactersOf(spec, text);
  cut.train_characters = TrainCharacters(spec, cut.characters);
  cut.train_bytes = cut.characters == static_cast<int64_t>(text.size())
                        ? static_cast<size_t>(cut.train_characters)
                        : BytesBefore(text, cut.train_characters);
  return cut;
}

absl::StatusOr<std::unique_ptr<const Bpe>> ReadBpe(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(std::string json, ReadWhole(uri, kLargestTokenizerFile, ""));
  absl::StatusOr<std::unique_ptr<const Bpe>> bpe = BpeFromJson(std::move(json));
  if (!bpe.ok()) return Annotate(bpe.status(), uri);
  return bpe;
}

absl::StatusOr<std::unique_ptr<const Vocabulary>> ReadVocabulary(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(const std::string json, ReadWhole(uri, kLargestTokenizerFile, ""));
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromJson(json);
  if (!vocabulary.ok()) return Annotate(vocabulary.status(), uri);
  return std::make_unique<const Vocabulary>(*std::move(vocabulary));
}

// `train` is all that a tokenizer may learn from; characters are those of the whole text, or those
// of a file that FROM_CHECKPOINT found.
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
  if (!spec.tokenizer_file().empty()) return ReadVocabulary(spec.tokenizer_file());
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::Characters(text);
  if (!vocabulary.ok()) return Annotate(vocabulary.status(), spec.path());
  return std::make_unique<const Vocabulary>(*std::move(vocabulary));
}

// The number of tokens that the model is for: declared, or the `found` ones that the tokenizer has.
absl::StatusOr<int64_t> VocabFor(const v1::TextData& spec, int64_t found) {
  const bool bpe = spec.tokenizer() == v1::TextData::BPE;
  const char* const what = bpe ? " tokens" : " distinct characters";
  const std::string& file = spec.tokenizer_file().empty() ? spec.path() : spec.tokenizer_file();
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

// Two bytes, or four where there may be more ids.
int64_t BytesPerId(int64_t vocab) { return vocab > 65536 ? 4 : 2; }

// Token ids in as many bytes each.
class TokenIds {
 public:
  // Room for `expected` of them.
  TokenIds(int64_t vocab, int64_t expected) : wide_(BytesPerId(vocab) == 4) {
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

// A text in memory, and what makes ids of it.
struct ReadyText {
  std::string content;
  Cut cut;
  std::unique_ptr<const Tokenizer> tokenizer;
  int64_t vocab = 0;
};

absl::StatusOr<ReadyText> PrepareText(const v1::TextData& spec) {
  ReadyText ready;
  TY_ASSIGN_OR_RETURN(ready.content, ReadText(spec));
  const absl::string_view text = ready.content;
  if (spec.tokenizer() == v1::TextData::BPE) {
    const absl::Status utf8 = CheckUtf8(text);
    if (!utf8.ok()) return Annotate(utf8, spec.path());
  }
  ready.cut = CutOf(spec, text);
  TY_ASSIGN_OR_RETURN(ready.tokenizer,
                      MakeTokenizer(spec, text, text.substr(0, ready.cut.train_bytes)));
  TY_ASSIGN_OR_RETURN(ready.vocab, VocabFor(spec, ready.tokenizer->size()));
  return ready;
}

// Ids of each part.
struct PartSizes {
  std::vector<int64_t> train, validation;
};

// Calls `add` with each id of `ready`, part after part.
absl::StatusOr<PartSizes> ForEachId(const v1::TextData& spec, const plan::Windowing& windowing,
                                    const ReadyText& ready, absl::FunctionRef<void(int32_t)> add) {
  PartSizes sizes;
  const auto encode = [&](absl::string_view split, std::vector<int64_t>& counts) {
    absl::Status status;
    for (const absl::string_view part : PartsOf(split, windowing)) {
      int64_t n = 0;
      status.Update(ready.tokenizer->ForEachId(part, [&](int32_t id) {
        add(id);
        ++n;
      }));
      counts.push_back(n);
    }
    return status;
  };
  const absl::string_view text = ready.content;
  absl::Status status = encode(text.substr(0, ready.cut.train_bytes), sizes.train);
  if (ready.cut.train_bytes < text.size()) {
    status.Update(encode(text.substr(ready.cut.train_bytes), sizes.validation));
  }
  if (!status.ok()) return Annotate(status, spec.path());
  return sizes;
}

struct EncodedText {
  std::unique_ptr<const Tokenizer> tokenizer;
  int64_t vocab = 0;
  PartSizes sizes;
  TokenIds ids;  // of the parts, one after the other
};

absl::StatusOr<EncodedText> EncodeText(const v1::TextData& spec, const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(ReadyText ready, PrepareText(spec));
  const bool bpe = spec.tokenizer() == v1::TextData::BPE;
  TokenIds ids(ready.vocab, bpe ? ready.cut.characters / 4 : ready.cut.characters);
  TY_ASSIGN_OR_RETURN(PartSizes sizes,
                      ForEachId(spec, windowing, ready, [&](int32_t id) { ids.Add(id); }));
  return EncodedText{std::move(ready.tokenizer), ready.vocab, std::move(sizes), std::move(ids)};
}

// What the ids of a text take. Windows of documents count as if they were full.
int64_t HeldBytes(const plan::DataFacts& facts, const plan::Windowing& windowing) {
  const int64_t ids = windowing.masked() ? windowing.context : 1;  // of a sample
  return (facts.train_size + facts.validation_size) * ids * BytesPerId(facts.vocab);
}

class TextDataset : public Windows {
 public:
  TextDataset(const plan::Windowing& windowing, EncodedText text, const std::string& warning)
      : Windows(windowing, text.sizes.train, text.sizes.validation, text.vocab),
        text_(std::move(text)) {
    if (!warning.empty()) warnings_.Add(warning);
    facts_.held_bytes = HeldBytes(facts_, windowing);
    int64_t at = 0;
    for (const int64_t n : text_.sizes.train) train_.push_back(std::exchange(at, at + n));
    for (const int64_t n : text_.sizes.validation) validation_.push_back(std::exchange(at, at + n));
  }

  using Windows::Check;

  const Tokenizer* tokenizer() const override { return text_.tokenizer.get(); }
  int64_t bytes() const override { return text_.ids.bytes(); }

 protected:
  absl::Status ReadWindow(Split split, size_t part, int64_t at, int64_t n, int32_t* inputs,
                          int32_t* targets) const override {
    const auto first =
        static_cast<size_t>(at + (split == Split::kTrain ? train_ : validation_)[part]);
    for (int64_t i = 0; i < n; ++i) inputs[i] = text_.ids[first + i];
    if (targets == nullptr) return absl::OkStatus();
    for (int64_t i = 0; i < n; ++i) targets[i] = text_.ids[first + i + 1];
    return absl::OkStatus();
  }

 private:
  const EncodedText text_;
  std::vector<int64_t> train_, validation_;  // where each part begins
};

// The facts of BPE data. Tokens are counted only where that takes seconds; of a larger text the
// vocabulary alone is looked at.
absl::StatusOr<plan::DataFacts> BpeFacts(const v1::TextData& spec,
                                         const plan::Windowing& windowing) {
  plan::DataFacts facts{.kind = KindOf(windowing)};
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(spec.path()));
  if (file.bytes <= kLargestCountedText) {
    TY_ASSIGN_OR_RETURN(const ReadyText ready, PrepareText(spec));
    TY_ASSIGN_OR_RETURN(const PartSizes sizes, ForEachId(spec, windowing, ready, [](int32_t) {}));
    facts.vocab = ready.vocab;
    facts.train_size = SizeOf(sizes.train, windowing);
    facts.validation_size = SizeOf(sizes.validation, windowing);
    facts.held_bytes = HeldBytes(facts, windowing);
    return facts;
  }
  // The text is in memory while a tokenizer is trained on it (some 32 bytes per byte of distinct
  // words, which are less than a sixteenth of so much natural text), then while it is encoded, to
  // an id for two bytes at most, growing by doubling.
  int64_t beside = 0;
  facts.vocab = spec.vocab_size();
  if (!spec.tokenizer_file().empty()) {
    TY_ASSIGN_OR_RETURN(const std::unique_ptr<const Bpe> bpe, ReadBpe(spec.tokenizer_file()));
    TY_ASSIGN_OR_RETURN(facts.vocab, VocabFor(spec, bpe->size()));
  } else {
    beside = 2 * file.bytes;
  }
  facts.held_bytes = file.bytes + std::max(beside, file.bytes / 2 * BytesPerId(facts.vocab));
  return facts;
}

}  // namespace

absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& given,
                                          const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(const v1::TextData spec, WithFoundTokenizer(given));
  if (spec.tokenizer() == v1::TextData::BPE) return BpeFacts(spec, windowing);
  TY_ASSIGN_OR_RETURN(TextPieces pieces, TextPieces::Open(spec.path()));
  TY_RETURN_IF_ERROR(CheckSize(pieces.path(), pieces.bytes(), kLargestText, kForLargerText));
  std::unique_ptr<const Vocabulary> known;  // which may lack some of the text's characters
  if (!spec.tokenizer_file().empty() && spec.tokenizer() != v1::TextData::BYTES) {
    TY_ASSIGN_OR_RETURN(known, ReadVocabulary(spec.tokenizer_file()));
  }
  TY_ASSIGN_OR_RETURN(const TextCount count,
                      CountText(spec, windowing, std::move(pieces), known.get()));
  int64_t found = known != nullptr ? known->size() : count.distinct;
  if (spec.tokenizer() == v1::TextData::BYTES) found = 256;
  TY_ASSIGN_OR_RETURN(const int64_t vocab, VocabFor(spec, found));
  plan::DataFacts facts{.kind = KindOf(windowing),
                        .vocab = vocab,
                        .train_size = count.train,
                        .validation_size = count.validation};
  facts.held_bytes = HeldBytes(facts, windowing);
  return facts;
}

std::optional<plan::DataFacts> DeclaredTextFacts(const v1::TextData& text,
                                                 const plan::Windowing& windowing) {
  const int64_t vocab = text.tokenizer() == v1::TextData::BYTES ? 256 : text.vocab_size();
  if (vocab < 1) return std::nullopt;
  return plan::DataFacts{.kind = KindOf(windowing), .vocab = vocab};
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> TextTokenizer(const v1::TextData& given) {
  TY_ASSIGN_OR_RETURN(const v1::TextData spec, WithFoundTokenizer(given));
  if (spec.tokenizer() == v1::TextData::BYTES || !spec.tokenizer_file().empty()) {
    return MakeTokenizer(spec, "", "");
  }
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(spec.path()));
  if (file.bytes > kLargestCountedText) return nullptr;
  TY_ASSIGN_OR_RETURN(const std::string content, ReadText(spec));
  const absl::string_view text = content;
  return MakeTokenizer(spec, text, text.substr(0, CutOf(spec, text).train_bytes));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& given,
                                                  const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(const v1::TextData spec, WithFoundTokenizer(given));
  TY_ASSIGN_OR_RETURN(EncodedText text, EncodeText(spec, windowing));
  const int64_t found = text.tokenizer->size();
  std::string warning;
  if (spec.tokenizer() == v1::TextData::BPE && found < text.vocab) {
    warning = absl::StrCat("spec.data.text.vocab_size: ", text.vocab - found, " of ", text.vocab,
                           " tokens stay unused, since ", spec.path(), " gave ", found);
  }
  auto dataset = std::make_unique<TextDataset>(windowing, std::move(text), warning);
  TY_RETURN_IF_ERROR(dataset->Check(spec.path()));
  return dataset;
}

}  // namespace trainyard::data
