#include "executor/plan/spec/data.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace trainyard::plan {

absl::Status CheckUri(const std::string& field, const std::string& uri) {
  if (uri.empty()) return Invalid(field, "is missing; give an absolute path or file:// URI");
  if (uri.find('\0') != std::string::npos) return Invalid(field, "holds a zero byte");
  if (uri.size() > 4096) return Invalid(field, uri.size(), " bytes are more than 4096");
  if (uri[0] == '/' || absl::StartsWith(uri, "file:///")) return absl::OkStatus();
  const size_t scheme = uri.find("://");
  if (scheme == std::string::npos) {
    return Invalid(field, "'", uri, "' is not an absolute path nor a file:// URI");
  }
  if (absl::StartsWith(uri, "file://")) {
    return Invalid(field, "'", uri, "' names a host; write file:///path");
  }
  return NotBuilt(field, absl::StrCat("the scheme ", uri.substr(0, scheme), "://"),
                  "use an absolute path or file://");
}

namespace {

absl::Status ResolveIdx(v1::IdxData& idx) {
  const std::string at = "spec.data.idx.";
  TY_RETURN_IF_ERROR(CheckUri(at + "train_images", idx.train_images()));
  TY_RETURN_IF_ERROR(CheckUri(at + "train_labels", idx.train_labels()));
  const bool has_test = !idx.test_images().empty();
  if (has_test || !idx.test_labels().empty()) {
    TY_RETURN_IF_ERROR(CheckUri(at + "test_images", idx.test_images()));
    TY_RETURN_IF_ERROR(CheckUri(at + "test_labels", idx.test_labels()));
  }
  TY_RETURN_IF_ERROR(ResolveValidationFraction(at, has_test ? "test_images" : "", idx));
  TY_RETURN_IF_ERROR(CheckFinite(at + "mean", idx.mean()));
  if (!idx.has_mean()) idx.set_mean(0);
  if (!idx.has_std()) idx.set_std(1);
  TY_RETURN_IF_ERROR(CheckPositive(at + "std", idx.std()));
  if (idx.has_classes()) TY_RETURN_IF_ERROR(CheckRange(at + "classes", idx.classes(), 1, 256));
  if (idx.has_height()) TY_RETURN_IF_ERROR(CheckRange(at + "height", idx.height(), 1, 65536));
  if (idx.has_width()) TY_RETURN_IF_ERROR(CheckRange(at + "width", idx.width(), 1, 65536));
  return CheckRange(at + "crop_padding", idx.crop_padding(), 0, 64);
}

absl::Status CheckBpe(const std::string& at, const v1::TextData& text) {
  if (!text.tokenizer_file().empty()) {
    TY_RETURN_IF_ERROR(CheckUri(at + "tokenizer_file", text.tokenizer_file()));
    if (!text.has_vocab_size()) return absl::OkStatus();
  } else if (!text.has_vocab_size()) {
    return Invalid(at + "vocab_size",
                   "is missing; BPE needs it to train a tokenizer, or tokenizer_file to read one");
  }
  return CheckRange(at + "vocab_size", text.vocab_size(), 256, 1 << 20);
}

absl::Status ResolveText(v1::TextData& text) {
  const std::string at = "spec.data.text.";
  TY_RETURN_IF_ERROR(CheckUri(at + "path", text.path()));
  if (text.tokenizer() == v1::TextData::TOKENIZER_UNSPECIFIED) {
    text.set_tokenizer(v1::TextData::CHARACTERS);
  }
  TY_RETURN_IF_ERROR(CheckChoice(at + "tokenizer", text.tokenizer(),
                                 "tokenizer; use CHARACTERS, BYTES, BPE or FROM_CHECKPOINT"));
  if (!text.has_validation_fraction()) text.set_validation_fraction(0.1);
  if (!(text.validation_fraction() >= 0 && text.validation_fraction() <= 0.5)) {
    return Invalid(at + "validation_fraction", text.validation_fraction(), " is not in [0, 0.5]");
  }
  if (text.tokenizer() == v1::TextData::BPE) return CheckBpe(at, text);
  if (text.tokenizer() == v1::TextData::FROM_CHECKPOINT) {  // CheckStartTokenizer does the rest
    if (!text.has_vocab_size()) return absl::OkStatus();
    return CheckRange(at + "vocab_size", text.vocab_size(), 1, 1 << 20);
  }
  if (!text.tokenizer_file().empty()) {
    return Invalid(at + "tokenizer_file",
                   "only BPE reads one; set tokenizer: BPE, or leave it out");
  }
  if (!text.has_vocab_size()) return absl::OkStatus();
  if (text.tokenizer() == v1::TextData::BYTES && text.vocab_size() != 256) {
    return Invalid(at + "vocab_size", text.vocab_size(), " is not 256, the number of BYTES");
  }
  return CheckRange(at + "vocab_size", text.vocab_size(), 1, 65536);
}

absl::Status ResolveTokens(v1::TokenData& tokens) {
  const std::string at = "spec.data.tokens.";
  if (tokens.train().empty()) return Invalid(at + "train", "is missing; name at least one file");
  for (const auto* files : {&tokens.train(), &tokens.validation()}) {
    const std::string field = at + (files == &tokens.train() ? "train" : "validation");
    if (files->size() > kMostShards)
      return Invalid(field, files->size(), " files are more than ", kMostShards);
    for (int i = 0; i < files->size(); ++i) {
      TY_RETURN_IF_ERROR(CheckUri(absl::StrCat(field, "[", i, "]"), files->Get(i)));
    }
  }
  if (tokens.format() == v1::TokenData::FORMAT_UNSPECIFIED)
    tokens.set_format(v1::TokenData::UINT16);
  TY_RETURN_IF_ERROR(
      CheckChoice(at + "format", tokens.format(), "format; use UINT16, UINT32 or LLMC"));
  const bool wide = tokens.format() == v1::TokenData::UINT32;
  return CheckRange(at + "vocab_size", tokens.vocab_size(), 1, wide ? int64_t{1} << 24 : 65536);
}

// What CSV and Criteo data have in common.
template <typename Source>
absl::Status ResolveClickFiles(const std::string& at, Source& source) {
  TY_RETURN_IF_ERROR(CheckUri(at + "train", source.train()));
  const bool held_out = !source.validation().empty();
  if (held_out) TY_RETURN_IF_ERROR(CheckUri(at + "validation", source.validation()));
  TY_RETURN_IF_ERROR(ResolveValidationFraction(at, held_out ? "validation" : "", source));
  TY_RETURN_IF_ERROR(ResolveBadRecords(at, v1::REFUSE_BAD_RECORDS, source));
  return CheckRange(at + "hash_buckets", source.hash_buckets(), 1, kMostIds);
}

absl::Status ResolveCsv(v1::CsvData& csv) {
  const std::string at = "spec.data.csv.";
  TY_RETURN_IF_ERROR(ResolveClickFiles(at, csv));
  TY_RETURN_IF_ERROR(CheckRange(at + "dense: the number of columns", csv.dense_size(), 1, 4096));
  TY_RETURN_IF_ERROR(CheckRange(at + "categorical: the number of columns", csv.categorical_size(),
                                1, kMostTables));
  absl::flat_hash_set<std::string> seen;
  const auto check = [&](const std::string& field, const std::string& column) {
    if (column.empty()) return Invalid(field, "is missing; name a column of the file");
    if (!seen.insert(column).second) return Invalid(field, "'", column, "' is named twice");
    return absl::OkStatus();
  };
  TY_RETURN_IF_ERROR(check(at + "label", csv.label()));
  for (int i = 0; i < csv.dense_size(); ++i) {
    TY_RETURN_IF_ERROR(check(absl::StrCat(at, "dense[", i, "]"), csv.dense(i)));
  }
  for (int i = 0; i < csv.categorical_size(); ++i) {
    TY_RETURN_IF_ERROR(check(absl::StrCat(at, "categorical[", i, "]"), csv.categorical(i)));
  }
  return absl::OkStatus();
}

absl::Status ResolveClicks(v1::ClicksData& clicks) {
  const std::string at = "spec.data.clicks.";
  constexpr int64_t kMostSamples = int64_t{1} << 40;
  if (!clicks.has_dense()) clicks.set_dense(13);
  if (!clicks.has_categorical()) clicks.set_categorical(26);
  if (!clicks.has_categories()) clicks.set_categories(1000);
  if (!clicks.has_seed()) clicks.set_seed(1);
  TY_RETURN_IF_ERROR(CheckRange(at + "train_samples", clicks.train_samples(), 1, kMostSamples));
  TY_RETURN_IF_ERROR(
      CheckRange(at + "validation_samples", clicks.validation_samples(), 1, kMostSamples));
  TY_RETURN_IF_ERROR(CheckRange(at + "dense", clicks.dense(), 1, 4096));
  TY_RETURN_IF_ERROR(CheckRange(at + "categorical", clicks.categorical(), 1, kMostTables));
  return CheckRange(at + "categories", clicks.categories(), 1, kMostIds);
}

}  // namespace

bool HasHeldOutSplit(const v1::Data& data) {
  if (data.has_text()) return data.text().validation_fraction() > 0;
  if (data.has_tokens()) return !data.tokens().validation().empty();
  return true;
}

absl::Status ResolveData(v1::Data& data) {
  if (!data.has_prefetch()) data.set_prefetch(4);
  TY_RETURN_IF_ERROR(CheckRange("spec.data.prefetch", data.prefetch(), 1, 64));
  if (data.has_threads()) {
    TY_RETURN_IF_ERROR(CheckRange("spec.data.threads", data.threads(), 1, 256));
  }
  switch (data.source_case()) {
    case v1::Data::kIdx:
      return ResolveIdx(*data.mutable_idx());
    case v1::Data::kText:
      return ResolveText(*data.mutable_text());
    case v1::Data::kTokens:
      return ResolveTokens(*data.mutable_tokens());
    case v1::Data::kImageFolder:
      return ResolveImageFolder(*data.mutable_image_folder());
    case v1::Data::kWebdataset:
      return ResolveWebDataset(*data.mutable_webdataset());
    case v1::Data::kCsv:
      return ResolveCsv(*data.mutable_csv());
    case v1::Data::kCriteo:
      return ResolveClickFiles("spec.data.criteo.", *data.mutable_criteo());
    case v1::Data::kClicks:
      return ResolveClicks(*data.mutable_clicks());
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return Invalid(
      "spec.data",
      "there is none; set idx, image_folder, webdataset, text, tokens, csv, criteo or clicks");
}

}  // namespace trainyard::plan
