#include "executor/data/tokenizer/tokenizer.h"

#include "absl/strings/str_format.h"
#include "executor/data/files/utf8.h"
#include "executor/data/tokenizer/tokenizer_json.h"
#include "executor/data/tokenizer/vocabulary.h"
#include "storage/base/status.h"

namespace trainyard::data {

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text) const {
  std::vector<int32_t> ids;
  TY_RETURN_IF_ERROR(ForEachId(text, [&](int32_t id) { ids.push_back(id); }));
  return ids;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += BytesOf(id);
  return text;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> ReadTokenizer(const NamedText& file) {
  if (file.name == kTokenizerFile) {
    absl::StatusOr<std::unique_ptr<const Bpe>> bpe = BpeFromJson(file.text);
    if (!bpe.ok()) return Annotate(bpe.status(), file.name);
    return *std::move(bpe);
  }
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromJson(file.text);
  if (!vocabulary.ok()) return Annotate(vocabulary.status(), file.name);
  return std::make_unique<const Vocabulary>(*std::move(vocabulary));
}

absl::Status CheckUtf8(absl::string_view text, int64_t offset) {
  for (size_t at = 0; at < text.size();) {
    if (text.size() - at >= 8 && EightAscii(text.data() + at)) {
      at += 8;
      continue;
    }
    char32_t c;
    if (!TakeCodePoint(text, at, c)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("byte 0x%02x at offset %d is not UTF-8; use the tokenizer BYTES",
                          static_cast<unsigned char>(text[at]), offset + static_cast<int64_t>(at)));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::data
