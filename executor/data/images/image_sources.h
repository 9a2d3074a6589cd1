#pragma once

// One pair of functions per source of images; read_facts.cc and open_dataset.cc choose among them.

#include <memory>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

absl::StatusOr<plan::DataFacts> ImageFacts(const v1::IdxData& idx);
absl::StatusOr<std::unique_ptr<Dataset>> OpenImages(const v1::IdxData& idx);

absl::StatusOr<plan::DataFacts> ImageFolderFacts(const v1::ImageFolderData& folder);
absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::ImageFolderData& folder);

absl::StatusOr<plan::DataFacts> WebDatasetFacts(const v1::WebDatasetData& webdataset);
absl::StatusOr<std::unique_ptr<Dataset>> OpenWebDataset(const v1::WebDatasetData& webdataset);

}  // namespace trainyard::data
