#include "executor/data/read_facts.h"

#include "executor/data/clicks/click_sources.h"
#include "executor/data/images/image_sources.h"
#include "executor/data/text/text_sources.h"
#include "executor/data/text/windows.h"

namespace trainyard::data {

absl::StatusOr<plan::DataFacts> ReadFacts(const v1::Data& data, const plan::Windowing& windowing) {
  switch (data.source_case()) {
    case v1::Data::kIdx:
      return ImageFacts(data.idx());
    case v1::Data::kImageFolder:
      return ImageFolderFacts(data.image_folder());
    case v1::Data::kWebdataset:
      return WebDatasetFacts(data.webdataset());
    case v1::Data::kText:
      return TextFacts(data.text(), windowing);
    case v1::Data::kTokens:
      return TokenFacts(data.tokens(), windowing);
    case v1::Data::kCsv:
      return CsvFacts(data.csv());
    case v1::Data::kCriteo:
      return CriteoFacts(data.criteo());
    case v1::Data::kClicks:
      return ClicksFacts(data.clicks());
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("spec.data: there is none");
}

namespace {

// `source` is of files of images.
template <typename Source>
std::optional<plan::DataFacts> ImageShape(const Source& source) {
  if (!source.has_classes()) return std::nullopt;
  return plan::DataFacts{.height = source.transform().size(),
                         .width = source.transform().size(),
                         .channels = source.transform().channels(),
                         .classes = source.classes()};
}

}  // namespace

std::optional<plan::DataFacts> DeclaredFacts(const v1::Data& data,
                                             const plan::Windowing& windowing) {
  plan::DataFacts facts;
  if (data.has_idx()) {
    const v1::IdxData& idx = data.idx();
    if (!idx.has_height() || !idx.has_width() || !idx.has_classes()) return std::nullopt;
    facts.height = idx.height();
    facts.width = idx.width();
    facts.channels = 1;
    facts.classes = idx.classes();
    return facts;
  }
  if (data.has_image_folder()) return ImageShape(data.image_folder());
  if (data.has_webdataset()) return ImageShape(data.webdataset());
  if (data.has_csv()) return CsvShape(data.csv());
  if (data.has_criteo()) return CriteoShape(data.criteo());
  if (data.has_clicks()) return ClicksFacts(data.clicks());
  facts.kind = KindOf(windowing);
  if (data.has_text()) {
    if (data.text().tokenizer() == v1::TextData::BYTES) {
      facts.vocab = 256;
    } else if (data.text().has_vocab_size()) {
      facts.vocab = data.text().vocab_size();
    }
  } else if (data.has_tokens()) {
    facts.vocab = data.tokens().vocab_size();
  }
  if (facts.vocab < 1) return std::nullopt;
  return facts;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> TokenizerOf(const v1::Data& data) {
  if (!data.has_text()) return nullptr;
  return TextTokenizer(data.text());
}

}  // namespace trainyard::data
