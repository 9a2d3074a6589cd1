#pragma once

// What each source of images offers; executor/data/sources.cc chooses among them.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// Declared...: as DeclaredFacts, known from the spec alone.
absl::StatusOr<plan::DataFacts> ImageFacts(const v1::IdxData& idx);
std::optional<plan::DataFacts> DeclaredImageFacts(const v1::IdxData& idx);
absl::StatusOr<std::unique_ptr<Dataset>> OpenImages(const v1::IdxData& idx);

absl::StatusOr<plan::DataFacts> ImageFolderFacts(const v1::ImageFolderData& folder);
std::optional<plan::DataFacts> DeclaredImageFolderFacts(const v1::ImageFolderData& folder);
absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::ImageFolderData& folder);

absl::StatusOr<plan::DataFacts> WebDatasetFacts(const v1::WebDatasetData& webdataset);
std::optional<plan::DataFacts> DeclaredWebDatasetFacts(const v1::WebDatasetData& webdataset);
absl::StatusOr<std::unique_ptr<Dataset>> OpenWebDataset(const v1::WebDatasetData& webdataset);

}  // namespace trainyard::data
