// Images and labels from IDX files, kept as bytes, and the places of their crops.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/data/files/regular_file.h"
#include "executor/data/images/draws.h"
#include "executor/data/images/idx.h"
#include "executor/data/images/image_sources.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// One pair of files.
struct ImagePart {
  IdxImages images;
  std::vector<uint8_t> labels;  // empty when only the headers were read
  IdxLabelCount labels_found;
};

constexpr int64_t kMostClasses = 256;  // that a byte can tell apart

int64_t DeclaredClasses(const v1::IdxData& idx) {
  return idx.has_classes() ? idx.classes() : kMostClasses;
}

absl::StatusOr<ImagePart> ReadPart(const v1::IdxData& idx, const std::string& images_uri,
                                   const std::string& labels_uri, bool header_only) {
  ImagePart part;
  TY_ASSIGN_OR_RETURN(part.images, ReadIdxImages(images_uri, header_only));
  if (header_only) {
    TY_ASSIGN_OR_RETURN(part.labels_found,
                        CountIdxLabels(labels_uri, part.images.count, DeclaredClasses(idx)));
  } else {
    TY_ASSIGN_OR_RETURN(part.labels, ReadIdxLabels(labels_uri));
    part.labels_found.Add(part.labels, DeclaredClasses(idx));
  }
  if (part.labels_found.count != part.images.count) {
    return absl::InvalidArgumentError(absl::StrCat(labels_uri, ": found ", part.labels_found.count,
                                                   " labels, expected ", part.images.count,
                                                   " as there are images in ", images_uri));
  }
  const bool fits = (!idx.has_height() || idx.height() == part.images.height) &&
                    (!idx.has_width() || idx.width() == part.images.width);
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        images_uri, ": found images of ", part.images.height, "x", part.images.width,
        ", spec.data.idx declares ", idx.has_height() ? absl::StrCat(idx.height()) : "any", "x",
        idx.has_width() ? absl::StrCat(idx.width()) : "any"));
  }
  return part;
}

absl::Status CheckLabels(const std::string& uri, const IdxLabelCount& found, int64_t classes) {
  if (found.first_over < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(uri, ": found label ", found.label_over,
                                                 " of sample ", found.first_over, ", expected [0, ",
                                                 classes, ")"));
}

// Both splits as the files hold them, checked against each other, and the facts.
struct ImageParts {
  ImagePart train;
  ImagePart test;  // empty when the held-out split is cut from train
  plan::DataFacts facts;
};

absl::StatusOr<ImageParts> ReadParts(const v1::IdxData& idx, bool header_only) {
  ImageParts parts;
  TY_ASSIGN_OR_RETURN(parts.train,
                      ReadPart(idx, idx.train_images(), idx.train_labels(), header_only));
  const IdxImages& train = parts.train.images;
  plan::DataFacts& facts = parts.facts;
  facts.kind = plan::DataFacts::Kind::kImages;
  facts.height = train.height;
  facts.width = train.width;
  facts.channels = 1;
  if (!idx.test_images().empty()) {
    TY_ASSIGN_OR_RETURN(parts.test,
                        ReadPart(idx, idx.test_images(), idx.test_labels(), header_only));
    const IdxImages& test = parts.test.images;
    if (test.height != train.height || test.width != train.width) {
      return absl::InvalidArgumentError(absl::StrCat(
          idx.test_images(), ": found images of ", test.height, "x", test.width, ", expected ",
          train.height, "x", train.width, " as in ", idx.train_images()));
    }
    facts.train_size = train.count;
    facts.validation_size = test.count;
  } else {
    facts.validation_size = std::max<int64_t>(
        1, std::llround(static_cast<double>(train.count) * idx.validation_fraction()));
    facts.train_size = train.count - facts.validation_size;
    if (facts.train_size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(idx.train_images(), ": ", train.count,
                       " images are too few to cut a held-out split from"));
    }
  }
  facts.classes =
      idx.has_classes()
          ? idx.classes()
          : std::max(parts.train.labels_found.largest, parts.test.labels_found.largest) + 1;
  TY_RETURN_IF_ERROR(CheckLabels(idx.train_labels(), parts.train.labels_found, facts.classes));
  TY_RETURN_IF_ERROR(CheckLabels(idx.test_labels(), parts.test.labels_found, facts.classes));
  // Pixels as bytes, and a label of each image as the i32 that it is filled as.
  const int64_t image_bytes = facts.height * facts.width * facts.channels;
  facts.held_bytes = (facts.train_size + facts.validation_size) * (image_bytes + 4);
  return parts;
}

class ImageDataset : public Dataset {
 public:
  ImageDataset(const v1::IdxData& idx, ImageParts parts)
      : train_(std::move(parts.train)),
        test_(std::move(parts.test)),
        padding_(idx.crop_padding()),
        flip_(idx.flip()),
        crops_(plan::TakesCrops(idx)) {
    facts_ = parts.facts;
    pixels_ = facts_.height * facts_.width * facts_.channels;
    input_bytes_ = pixels_;
    if (crops_) input_bytes_ += sizeof(Place);
    target_bytes_ = sizeof(int32_t);
  }

  int64_t size(Split split) const override {
    return split == Split::kTrain ? facts_.train_size : facts_.validation_size;
  }

  absl::Status Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                    void* targets) const override {
    uint8_t* input = static_cast<uint8_t*>(inputs);
    int32_t* target = static_cast<int32_t*>(targets);
    for (const int64_t sample : samples) {
      FillOne(split, sample, input, target++);
      input += pixels_;
    }
    return absl::OkStatus();
  }

  absl::Status FillForTraining(uint64_t seed, absl::Span<const int64_t> samples,
                               absl::Span<const int64_t> epochs, void* inputs,
                               void* targets) const override {
    for (const int64_t sample : samples) TY_CHECK(sample >= 0, "sample ", sample);
    TY_RETURN_IF_ERROR(Fill(Split::kTrain, samples, inputs, targets));
    if (!crops_) return absl::OkStatus();
    // Bytes: they may follow the pixels anywhere.
    uint8_t* places = static_cast<uint8_t*>(inputs) + samples.size() * pixels_;
    for (size_t i = 0; i < samples.size(); ++i) {
      const Place place = PlaceOf(Draws(seed, epochs[i], samples[i]));
      std::memcpy(places + i * sizeof(place), &place, sizeof(place));
    }
    return absl::OkStatus();
  }

  bool sampled_with_replacement() const override { return false; }

  int64_t bytes() const override {
    return static_cast<int64_t>(train_.images.pixels.size() + train_.labels.size() +
                                test_.images.pixels.size() + test_.labels.size());
  }

 private:
  void FillOne(Split split, int64_t sample, uint8_t* input, int32_t* target) const {
    if (sample < 0) {
      std::fill_n(input, pixels_, uint8_t{0});
      *target = -1;
      return;
    }
    TY_CHECK(sample < size(split), "sample ", sample, " of ", size(split));
    const bool own_files = !test_.labels.empty();
    const ImagePart& part = split == Split::kValidation && own_files ? test_ : train_;
    // Cut from the end of train.
    if (split == Split::kValidation && !own_files) sample += facts_.train_size;
    std::copy_n(part.images.pixels.data() + sample * pixels_, pixels_, input);
    *target = part.labels[static_cast<size_t>(sample)];
  }

  using Place = std::array<int32_t, plan::kPlace>;

  // Of a crop of the image padded with black, mirrored or not.
  Place PlaceOf(Draws draws) const {
    const bool mirrored = flip_ && draws.Coin();
    const int64_t dy = draws.Below(2 * padding_ + 1) - padding_;
    const int64_t dx = draws.Below(2 * padding_ + 1) - padding_;
    return {static_cast<int32_t>(dy), static_cast<int32_t>(dx), mirrored ? 1 : 0};
  }

  ImagePart train_, test_;
  const int64_t padding_;
  const bool flip_, crops_;
  int64_t pixels_ = 0;
};

}  // namespace

absl::StatusOr<plan::DataFacts> ImageFacts(const v1::IdxData& idx) {
  TY_ASSIGN_OR_RETURN(const ImageParts parts, ReadParts(idx, /*header_only=*/true));
  return parts.facts;
}

std::optional<plan::DataFacts> DeclaredImageFacts(const v1::IdxData& idx) {
  if (!idx.has_height() || !idx.has_width() || !idx.has_classes()) return std::nullopt;
  return plan::DataFacts{.kind = plan::DataFacts::Kind::kImages,
                         .height = idx.height(),
                         .width = idx.width(),
                         .channels = 1,
                         .classes = idx.classes()};
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenImages(const v1::IdxData& idx) {
  TY_ASSIGN_OR_RETURN(ImageParts parts, ReadParts(idx, /*header_only=*/false));
  return std::make_unique<ImageDataset>(idx, std::move(parts));
}

}  // namespace trainyard::data
