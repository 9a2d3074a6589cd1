#include "executor/data/tokenizer/tokenizer_files.h"

#include <utility>

#include "executor/data/files/regular_file.h"
#include "executor/data/tokenizer/vocabulary.h"
#include "storage/base/status.h"

namespace trainyard::data {

absl::StatusOr<NamedText> FindTokenizerFile(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(const std::string folder, LocalPath(uri));
  for (const char* name : {kTokenizerFile, kVocabularyFile}) {
    absl::StatusOr<std::string> text =
        ReadSmallFile(absl::StrCat(folder, "/", name), kLargestTokenizerFile);
    if (absl::IsNotFound(text.status())) continue;
    TY_RETURN_IF_ERROR(text.status());
    return NamedText{.name = name, .text = *std::move(text)};
  }
  return absl::NotFoundError(
      absl::StrCat(folder, ": holds neither ", kTokenizerFile, " nor ", kVocabularyFile));
}

absl::StatusOr<v1::TextData> WithFoundTokenizer(const v1::TextData& text) {
  if (text.tokenizer() != v1::TextData::FROM_CHECKPOINT) return text;
  TY_ASSIGN_OR_RETURN(const NamedText found, FindTokenizerFile(text.tokenizer_file()));
  v1::TextData with = text;
  with.set_tokenizer_file(absl::StrCat(text.tokenizer_file(), "/", found.name));
  with.set_tokenizer(v1::TextData::BPE);
  if (found.name == kTokenizerFile) return with;
  const absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromJson(found.text);
  if (!vocabulary.ok()) return Annotate(vocabulary.status(), with.tokenizer_file());
  with.set_tokenizer(vocabulary->bytes() ? v1::TextData::BYTES : v1::TextData::CHARACTERS);
  return with;
}

}  // namespace trainyard::data
