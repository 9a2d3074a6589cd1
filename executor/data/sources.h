#pragma once

// One pair of functions per source of data; read_facts.cc and dataset.cc choose among them.

#include <memory>

#include "absl/status/statusor.h"
#include "executor/data/dataset.h"
#include "executor/data/tokenizer.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

absl::StatusOr<plan::DataFacts> ImageFacts(const v1::IdxData& idx);
absl::StatusOr<std::unique_ptr<Dataset>> OpenImages(const v1::IdxData& idx);

absl::StatusOr<plan::DataFacts> ImageFolderFacts(const v1::ImageFolderData& folder);
absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::ImageFolderData& folder);

absl::StatusOr<plan::DataFacts> WebDatasetFacts(const v1::WebDatasetData& webdataset);
absl::StatusOr<std::unique_ptr<Dataset>> OpenWebDataset(const v1::WebDatasetData& webdataset);

absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& text,
                                          const plan::Windowing& windowing);
absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& text,
                                                  const plan::Windowing& windowing);

// As TokenizerOf.
absl::StatusOr<std::unique_ptr<const Tokenizer>> TextTokenizer(const v1::TextData& text);

absl::StatusOr<plan::DataFacts> TokenFacts(const v1::TokenData& tokens,
                                           const plan::Windowing& windowing);
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const v1::TokenData& tokens,
                                                    const plan::Windowing& windowing);

// ...Shape: facts without sizes, known from the spec alone.
plan::DataFacts CsvShape(const v1::CsvData& csv);
absl::StatusOr<plan::DataFacts> CsvFacts(const v1::CsvData& csv);
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::CsvData& csv);

plan::DataFacts CriteoShape(const v1::CriteoData& criteo);
absl::StatusOr<plan::DataFacts> CriteoFacts(const v1::CriteoData& criteo);
absl::StatusOr<std::unique_ptr<Dataset>> OpenCriteo(const v1::CriteoData& criteo);

plan::DataFacts ClicksFacts(const v1::ClicksData& clicks);
std::unique_ptr<Dataset> OpenClicks(const v1::ClicksData& clicks);

}  // namespace trainyard::data
