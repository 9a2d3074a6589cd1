#include "executor/data/read_facts.h"

#include "executor/data/sources.h"
#include "executor/data/text/text_sources.h"
#include "storage/base/status.h"

namespace trainyard::data {

absl::StatusOr<plan::DataFacts> ReadFacts(const v1::Data& data, const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(const Source source, SourceOf(data));
  return source.read(data, windowing);
}

std::optional<plan::DataFacts> DeclaredFacts(const v1::Data& data,
                                             const plan::Windowing& windowing) {
  const absl::StatusOr<Source> source = SourceOf(data);
  if (!source.ok()) return std::nullopt;
  return source->declare(data, windowing);
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> TokenizerOf(const v1::Data& data) {
  if (!data.has_text()) return nullptr;
  return TextTokenizer(data.text());
}

}  // namespace trainyard::data
