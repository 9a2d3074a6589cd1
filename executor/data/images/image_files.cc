// Folders and WebDataset archives of JPEG and PNG files as a data set: read, decoded, cropped and
// resized as they are asked for, by as many threads as ask.

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "executor/data/images/image_records.h"
#include "executor/data/images/image_sources.h"
#include "executor/data/images/sample_reader.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// So many training images in a row that cannot be read are more than bad luck.
constexpr int64_t kMostTries = 100;

// So many members of archives are looked at to know the size of the data: some 100,000 samples.
constexpr int64_t kMostFilesCounted = 200'000;

// What is held of an image: its name and place.
constexpr int64_t kIndexBytes = 64;

// What a thread holds while it decodes an image: a photograph of 4 million pixels.
constexpr int64_t kPhotographBytes = int64_t{12} << 20;

// Sizes of 0: not known yet.
plan::DataFacts FactsOf(const v1::ImageTransform& transform, int64_t classes,
                        int64_t train_size = 0, int64_t validation_size = 0) {
  return {.kind = plan::DataFacts::Kind::kImages,
          .height = transform.size(),
          .width = transform.size(),
          .channels = transform.channels(),
          .classes = classes,
          .train_size = train_size,
          .validation_size = validation_size,
          .held_bytes = (train_size + validation_size) * kIndexBytes,
          .bytes_per_thread = kPhotographBytes};
}

plan::DataFacts FactsOf(const v1::ImageTransform& transform, const ImageSource& source) {
  return FactsOf(transform, source.classes, source.train->size(), source.validation->size());
}

// Whether a failure is one image's and not the machine's. A link that leads nowhere and a file that
// may not be read are.
bool IsOfRecord(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsPermissionDenied(status) || absl::IsDataLoss(status);
}

class ImageFiles : public Dataset {
 public:
  ImageFiles(const v1::ImageTransform& transform, bool refuse)
      : transform_(transform), skipped_(refuse, warnings_) {}

  // Call once, before anything else.
  absl::Status Open(absl::StatusOr<ImageSource> source) {
    TY_RETURN_IF_ERROR(source.status());
    source_ = *std::move(source);
    facts_ = FactsOf(transform_, source_);
    input_bytes_ = facts_.height * facts_.width * facts_.channels;
    target_bytes_ = sizeof(int32_t);
    return absl::OkStatus();
  }

  Warnings& warnings() { return warnings_; }
  SkippedRecords& skipped_records() { return skipped_; }

  int64_t size(Split split) const override { return records(split).size(); }
  bool sampled_with_replacement() const override { return false; }
  int64_t grain() const override { return 1; }
  int64_t skipped() const override { return skipped_.count(); }
  int64_t bytes() const override { return source_.train->bytes() + source_.validation->bytes(); }

  absl::Status Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                    void* targets) const override {
    return FillAll(
        split, samples, [](size_t) { return std::nullopt; }, inputs, targets);
  }

  absl::Status FillForTraining(uint64_t seed, absl::Span<const int64_t> samples,
                               absl::Span<const int64_t> epochs, void* inputs,
                               void* targets) const override {
    const auto draws = [&](size_t i) { return Draws(seed, epochs[i], samples[i]); };
    return FillAll(Split::kTrain, samples, draws, inputs, targets);
  }

 private:
  // What one thread needs; kept from call to call.
  struct Scratch {
    explicit Scratch(const v1::ImageTransform& transform) : reader(transform) {}
    SampleReader reader;
    RegularFile file;
    std::vector<uint8_t> content;
  };

  const ImageRecords& records(Split split) const {
    return split == Split::kTrain ? *source_.train : *source_.validation;
  }

  template <typename DrawsOf>
  absl::Status FillAll(Split split, absl::Span<const int64_t> samples, const DrawsOf& draws_of,
                       void* inputs, void* targets) const {
    std::unique_ptr<Scratch> scratch = Borrow();
    absl::Status status;
    for (size_t i = 0; i < samples.size() && status.ok(); ++i) {
      uint8_t* input = static_cast<uint8_t*>(inputs) + i * input_bytes_;
      const std::optional<Draws> draws = draws_of(i);
      status =
          FillOne(split, samples[i], draws, *scratch, input, static_cast<int32_t*>(targets) + i);
    }
    GiveBack(std::move(scratch));
    return status;
  }

  // A training sample that cannot be read gives way to the next one that can, drawn for as itself;
  // a sample of the held-out split becomes padding.
  absl::Status FillOne(Split split, int64_t sample, const std::optional<Draws>& draws,
                       Scratch& scratch, uint8_t* input, int32_t* target) const {
    TY_CHECK(sample < size(split), "sample ", sample, " of ", size(split));
    const int64_t tries = split == Split::kTrain ? std::min(kMostTries, size(split)) : 1;
    absl::Status status;
    for (int64_t i = 0; i < tries && sample >= 0; ++i) {
      const int64_t record = (sample + i) % size(split);
      std::optional<Draws> own = draws;
      status = ReadOne(records(split), record, own ? &*own : nullptr, scratch, input);
      if (status.ok()) {
        *target = records(split).label(record);
        return absl::OkStatus();
      }
      if (!IsOfRecord(status)) return status;
      TY_RETURN_IF_ERROR(skipped_.Add(records(split).Name(record), status));
    }
    if (sample >= 0 && split == Split::kTrain) {
      return Annotate(status, absl::StrCat(tries, " images in a row cannot be read; the last is"));
    }
    std::fill_n(input, input_bytes_, uint8_t{0});
    *target = -1;
    return absl::OkStatus();
  }

  absl::Status ReadOne(const ImageRecords& records, int64_t record, Draws* draws, Scratch& scratch,
                       uint8_t* input) const {
    TY_RETURN_IF_ERROR(records.Read(record, scratch.file, scratch.content));
    const absl::Status status = scratch.reader.Read(scratch.content, draws, input);
    return status.ok() ? status : Annotate(status, records.Name(record));
  }

  std::unique_ptr<Scratch> Borrow() const {
    absl::MutexLock lock(&mu_);
    if (scratches_.empty()) return std::make_unique<Scratch>(transform_);
    std::unique_ptr<Scratch> scratch = std::move(scratches_.back());
    scratches_.pop_back();
    return scratch;
  }

  void GiveBack(std::unique_ptr<Scratch> scratch) const {
    absl::MutexLock lock(&mu_);
    scratches_.push_back(std::move(scratch));
  }

  const v1::ImageTransform transform_;
  mutable SkippedRecords skipped_;
  ImageSource source_;
  mutable absl::Mutex mu_;
  mutable std::vector<std::unique_ptr<Scratch>> scratches_
      ABSL_GUARDED_BY(mu_);  // in nobody's hands
};

template <typename Data>
std::unique_ptr<ImageFiles> MakeDataset(const Data& data) {
  return std::make_unique<ImageFiles>(data.transform(),
                                      data.bad_records() == v1::REFUSE_BAD_RECORDS);
}

}  // namespace

absl::StatusOr<plan::DataFacts> ImageFolderFacts(const v1::ImageFolderData& folder) {
  Warnings unheard;
  TY_ASSIGN_OR_RETURN(const ImageSource source, ListImageFolder(folder, unheard));
  return FactsOf(folder.transform(), source);
}

std::optional<plan::DataFacts> DeclaredImageFolderFacts(const v1::ImageFolderData& folder) {
  if (!folder.has_classes()) return std::nullopt;
  return FactsOf(folder.transform(), folder.classes());
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::ImageFolderData& folder) {
  auto dataset = MakeDataset(folder);
  TY_RETURN_IF_ERROR(dataset->Open(ListImageFolder(folder, dataset->warnings())));
  return dataset;
}

absl::StatusOr<plan::DataFacts> WebDatasetFacts(const v1::WebDatasetData& webdataset) {
  Warnings unheard;
  SkippedRecords skipped(webdataset.bad_records() == v1::REFUSE_BAD_RECORDS, unheard);
  TY_ASSIGN_OR_RETURN(const ImageSource source,
                      IndexWebDataset(webdataset, skipped, kMostFilesCounted));
  if (source.share == 1) return FactsOf(webdataset.transform(), source);
  if (!webdataset.has_classes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.data.webdataset.classes: is missing; archives of more than ",
                     kMostFilesCounted, " files are not looked through before the job runs"));
  }
  plan::DataFacts facts = FactsOf(webdataset.transform(), source.classes);
  facts.held_bytes =
      static_cast<int64_t>(static_cast<double>(source.train->bytes() + source.validation->bytes()) /
                           std::max(source.share, 1e-6));
  return facts;
}

std::optional<plan::DataFacts> DeclaredWebDatasetFacts(const v1::WebDatasetData& webdataset) {
  if (!webdataset.has_classes()) return std::nullopt;
  return FactsOf(webdataset.transform(), webdataset.classes());
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenWebDataset(const v1::WebDatasetData& webdataset) {
  auto dataset = MakeDataset(webdataset);
  TY_RETURN_IF_ERROR(dataset->Open(IndexWebDataset(webdataset, dataset->skipped_records())));
  return dataset;
}

}  // namespace trainyard::data
