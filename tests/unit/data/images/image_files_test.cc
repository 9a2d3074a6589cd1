#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/data/read_facts.h"
#include "tests/unit/data/files.h"
#include "tests/unit/data/images/encoders.h"

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What ResolveSpec makes of `size: 16`.
void SetTransform(v1::ImageTransform& t) {
  t.set_size(16);
  t.set_resize(18);
  t.set_crop(v1::ImageTransform::RANDOM_RESIZED);
  for (const double v : {0.08, 1.0}) t.add_scale(v);
  for (const double v : {0.75, 4.0 / 3}) t.add_ratio(v);
  t.set_flip(true);
  t.set_channels(3);
  for (int c = 0; c < 3; ++c) {
    t.add_mean(0);
    t.add_std(1);
  }
}

// A PNG of one colour.
std::string Plain(uint8_t value, int64_t side = 20) {
  return AsString(PngFile({.height = side, .width = side}, Bytes(side * side * 3, value)));
}

class ImageFolder : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(folder_.path(name)).parent_path());
    folder_.Write(name, content);
  }

  // Classes a, b and c of four images each, of value 10 * class + number.
  void WriteClasses() {
    for (int c = 2; c >= 0; --c) {
      for (int i = 3; i >= 0; --i) {
        Write(absl::StrCat("train/", std::string(1, static_cast<char>('a' + c)), "/", i, ".png"),
              Plain(static_cast<uint8_t>(10 * c + i)));
      }
    }
  }

  v1::Data Data() {
    v1::Data data;
    v1::ImageFolderData& folder = *data.mutable_image_folder();
    folder.set_train(folder_.path("train"));
    folder.set_validation_fraction(0.25);
    folder.set_bad_records(v1::SKIP_BAD_RECORDS);
    SetTransform(*folder.mutable_transform());
    return data;
  }

  void ExpectRefused(const v1::Data& data, const std::string& message) {
    for (const absl::Status& status : {OpenDataset(data, 0).status(), ReadFacts(data).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    }
  }

  const Folder folder_;
};

struct Samples {
  Bytes pixels;
  std::vector<int32_t> labels;
  absl::Status status;
  // Of the middle of a sample.
  int ValueOf(size_t sample) const { return pixels[sample * 768 + 400]; }
};

Samples FillFrom(const Dataset& dataset, Split split, const std::vector<int64_t>& ids) {
  Samples samples;
  samples.pixels.resize(ids.size() * dataset.input_bytes(), 77);
  samples.labels.resize(ids.size(), -7);
  samples.status = dataset.Fill(split, ids, samples.pixels.data(), samples.labels.data());
  return samples;
}

Samples Train(const Dataset& dataset, int64_t epoch, const std::vector<int64_t>& ids) {
  Samples samples;
  samples.pixels.resize(ids.size() * dataset.input_bytes(), 77);
  samples.labels.resize(ids.size(), -7);
  const std::vector<int64_t> epochs(ids.size(), epoch);
  samples.status =
      dataset.FillForTraining(1, ids, epochs, samples.pixels.data(), samples.labels.data());
  return samples;
}

TEST_F(ImageFolder, HasClassesAndFilesInTheOrderOfTheirNames) {
  WriteClasses();
  const auto dataset = OpenDataset(Data(), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const plan::DataFacts& facts = (*dataset)->facts();
  EXPECT_EQ(facts.height, 16);
  EXPECT_EQ(facts.width, 16);
  EXPECT_EQ(facts.channels, 3);
  EXPECT_EQ(facts.classes, 3);
  EXPECT_EQ(facts.train_size, 9);
  EXPECT_EQ(facts.validation_size, 3);
  EXPECT_EQ(ReadFacts(Data())->train_size, 9);
  // Names and places of the images, and what each thread decodes.
  EXPECT_EQ(ReadFacts(Data())->held_bytes, facts.held_bytes);
  EXPECT_GE(facts.held_bytes, (*dataset)->bytes());
  EXPECT_EQ(facts.held_bytes, 12 * 64);
  EXPECT_EQ(facts.bytes_per_thread, 12 << 20);
  const Samples train = FillFrom(**dataset, Split::kTrain, {0, 1, 2, 3, 8});
  ASSERT_TRUE(train.status.ok()) << train.status;
  EXPECT_THAT(train.labels, ElementsAre(0, 0, 0, 1, 2));
  EXPECT_EQ(train.ValueOf(0), 0);
  EXPECT_EQ(train.ValueOf(2), 2);
  EXPECT_EQ(train.ValueOf(4), 22);
  // The last of each class are held out.
  const Samples held_out = FillFrom(**dataset, Split::kValidation, {0, 1, 2, -1});
  EXPECT_THAT(held_out.labels, ElementsAre(0, 1, 2, -1));
  EXPECT_EQ(held_out.ValueOf(1), 13);
  EXPECT_EQ(held_out.ValueOf(3), 0);
  EXPECT_THAT((*dataset)->TakeWarnings(), IsEmpty());
}

TEST_F(ImageFolder, MayHoldOutAFolderOfItsOwn) {
  WriteClasses();
  Write("val/b/x.JPEG", AsString(JpegFile({.height = 30, .width = 20}, 1, Bytes(600, 77))));
  v1::Data data = Data();
  data.mutable_image_folder()->clear_validation_fraction();
  data.mutable_image_folder()->set_validation("file://" + folder_.path("val"));
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 12);
  const Samples held_out = FillFrom(**dataset, Split::kValidation, {0});
  EXPECT_THAT(held_out.labels, ElementsAre(1));
  EXPECT_EQ(held_out.ValueOf(0), 77);
  Write("val/d/x.png", Plain(1));
  ExpectRefused(data, "val/d: found a class that the training images do not have");
}

TEST_F(ImageFolder, PassesOverOtherFilesAndSaysSo) {
  WriteClasses();
  Write("train/readme.txt", "");
  Write("train/a/notes.txt", "");
  Write("train/a/.hidden.png", "");
  const auto dataset = OpenDataset(Data(), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 9);
  EXPECT_THAT((*dataset)->TakeWarnings(),
              ElementsAre(HasSubstr("passed over 2 files that are no image of a class; the first "
                                    "is ")));
}

TEST_F(ImageFolder, ThatIsNoneIsRefused) {
  v1::Data data = Data();
  EXPECT_EQ(OpenDataset(data, 0).status().code(), absl::StatusCode::kNotFound);
  Write("train/a/x/1.png", Plain(1));
  ExpectRefused(data, "train/a/x: found a folder within a class, expected image files");
  std::filesystem::remove_all(folder_.path("train"));
  Write("train/a/1.txt", "");
  ExpectRefused(data, "train/a: found a class without .jpg, .jpeg or .png files");
  std::filesystem::remove_all(folder_.path("train"));
  Write("train/1.png", Plain(1));
  ExpectRefused(data, "train: found no image, expected FOLDER/CLASS/FILE.jpg");
  std::filesystem::remove_all(folder_.path("train"));
  Write("train", "");
  ExpectRefused(data, "train: found a file, expected a folder with a folder per class");
  std::filesystem::remove_all(folder_.path("train"));
  Write("train/a/1.png", Plain(1));
  ExpectRefused(data, "train: no class has images enough to hold out 0.25 of them");
  WriteClasses();
  data.mutable_image_folder()->set_classes(7);
  ExpectRefused(data, "train: found 3 classes, spec.data.image_folder.classes declares 7");
}

TEST_F(ImageFolder, OfBadImagesTakesTheNextOneAndCounts) {
  WriteClasses();
  Write("train/a/1.png", "no image");
  Write("train/a/2.png", Plain(2).substr(0, 40));
  std::filesystem::remove(folder_.path("train/c/3.png"));
  ASSERT_EQ(mkfifo(folder_.path("train/c/3.png").c_str(), 0600), 0);
  const auto dataset = OpenDataset(Data(), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Samples train = Train(**dataset, 0, {0, 1, 2, 3});
  ASSERT_TRUE(train.status.ok()) << train.status;
  EXPECT_THAT(train.labels, ElementsAre(0, 1, 1, 1));
  EXPECT_EQ(train.ValueOf(1), 10);
  EXPECT_EQ(train.ValueOf(2), 10);
  EXPECT_THAT((*dataset)->TakeWarnings(),
              ElementsAre(HasSubstr("a/1.png: begins with 'no image', expected the start"),
                          HasSubstr("a/2.png: not a whole PNG: the file ends too early; skipped "
                                    "as 1 before it")));
  EXPECT_EQ((*dataset)->skipped(), 2);
  Train(**dataset, 1, {1, 2});  // known already
  EXPECT_THAT((*dataset)->TakeWarnings(), IsEmpty());
  EXPECT_EQ((*dataset)->skipped(), 2);
  // Of what is held out nothing stands in for another.
  EXPECT_THAT(FillFrom(**dataset, Split::kValidation, {2}).labels, ElementsAre(-1));
  EXPECT_THAT((*dataset)->TakeWarnings(), ElementsAre(HasSubstr("c/3.png: found a special file")));
}

// Gone since it was listed: the disk's fault, and for all that is known it comes back.
TEST_F(ImageFolder, AFileThatGoesAwayIsNoBadImageButALinkToNowhereIs) {
  WriteClasses();
  std::filesystem::remove(folder_.path("train/a/1.png"));
  std::filesystem::create_symlink("/absent", folder_.path("train/a/1.png"));
  const auto dataset = OpenDataset(Data(), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(Train(**dataset, 0, {1}).status, absl::OkStatus());
  EXPECT_THAT((*dataset)->TakeWarnings(), ElementsAre(HasSubstr("a/1.png: No such file")));
  std::filesystem::remove(folder_.path("train/a/0.png"));
  const absl::Status gone = Train(**dataset, 0, {0}).status;
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()),
              HasSubstr("a/0.png: No such file or directory; it was there when the run began"));
  EXPECT_EQ((*dataset)->skipped(), 1);
}

TEST_F(ImageFolder, OfBadImagesIsRefusedWhenAskedOrWhenThereIsNothingElse) {
  WriteClasses();
  Write("train/a/1.png", "no image");
  v1::Data data = Data();
  data.mutable_image_folder()->set_bad_records(v1::REFUSE_BAD_RECORDS);
  const auto strict = OpenDataset(data, 0);
  ASSERT_TRUE(strict.ok());
  EXPECT_THAT(std::string(Train(**strict, 0, {0, 1}).status.message()),
              HasSubstr("a/1.png: begins with 'no image', expected the start of a JPEG or a PNG; "
                        "with bad_records: SKIP_BAD_RECORDS training goes on without it"));
  for (const char c : {'a', 'b', 'c'}) {
    for (int i = 0; i < 4; ++i)
      Write(absl::StrCat("train/", std::string(1, c), "/", i, ".png"), "");
  }
  const auto lost = OpenDataset(Data(), 0);
  ASSERT_TRUE(lost.ok());
  EXPECT_THAT(std::string(Train(**lost, 0, {0}).status.message()),
              HasSubstr("9 images in a row cannot be read; the last is"));
}

TEST_F(ImageFolder, IsCroppedAndFlippedBySeedEpochAndSample) {
  // Dark on the left, bright on the right.
  Bytes half(20 * 20 * 3);
  for (size_t i = 0; i < half.size(); ++i) half[i] = i / 3 % 20 < 10 ? 10 : 200;
  for (int i = 0; i < 40; ++i) {
    Write(absl::StrCat("train/a/", i, ".png"),
          AsString(PngFile({.height = 20, .width = 20}, half)));
  }
  const auto dataset = OpenDataset(Data(), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int64_t> ids(30);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  const Samples once = Train(**dataset, 0, ids), again = Train(**dataset, 0, ids);
  const Samples later = Train(**dataset, 1, ids);
  EXPECT_EQ(once.pixels, again.pixels);
  EXPECT_NE(once.pixels, later.pixels);
  int mirrored = 0, different = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint8_t* sample = once.pixels.data() + i * 768;
    mirrored += sample[0] > sample[45];
    different += !std::equal(sample, sample + 768, once.pixels.data());
  }
  EXPECT_GT(mirrored, 3);
  EXPECT_LT(mirrored, 27);
  EXPECT_GT(different, 20);
  // Not for evaluation, nor when the crop is central and nothing is flipped.
  v1::Data data = Data();
  data.mutable_image_folder()->mutable_transform()->set_crop(v1::ImageTransform::CENTER);
  data.mutable_image_folder()->mutable_transform()->set_flip(false);
  const auto plain = OpenDataset(data, 0);
  EXPECT_EQ(Train(**plain, 3, ids).pixels, FillFrom(**dataset, Split::kTrain, ids).pixels);
}

TEST_F(ImageFolder, OfLargePhotographsIsDecodedSmallerWithLittleLoss) {
  // JPEG and PNG of the same picture, of sides that are decoded whole, to a half, quarter and
  // eighth.
  const std::vector<int64_t> sides = {40, 64, 110, 230, 600};
  for (const int64_t side : sides) {
    const ImageSize size = {.height = side, .width = side};
    const Bytes picture = Picture(size, 3);
    const std::string name = absl::StrCat("train/a/", 1000 + side);
    Write(name + ".jpg", AsString(JpegFile(size, 3, picture, {.quality = 97})));
    Write(name + ".png", AsString(PngFile(size, picture)));
  }
  Write("train/a/z.png", Plain(0));
  v1::Data data = Data();
  data.mutable_image_folder()->set_validation_fraction(0.1);
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  for (size_t i = 0; i < sides.size(); ++i) {
    const auto jpeg = static_cast<int64_t>(2 * i);
    const Samples samples = FillFrom(**dataset, Split::kTrain, {jpeg, jpeg + 1});
    double error = 0;
    for (size_t j = 0; j < 768; ++j) {
      error += std::pow(samples.pixels[j] - samples.pixels[768 + j], 2) / 768;
    }
    EXPECT_LT(std::sqrt(error), 5) << sides[i];  // of 255
  }
}

// The device does it.
TEST_F(ImageFolder, IsNotNormalised) {
  WriteClasses();
  v1::Data data = Data();
  v1::ImageTransform& t = *data.mutable_image_folder()->mutable_transform();
  for (int c = 0; c < 3; ++c) {
    t.set_mean(c, 0.1 * (c + 1));
    t.set_std(c, 0.5 * (c + 1));
  }
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(FillFrom(**dataset, Split::kTrain, {8}).pixels, Bytes(768, 22));
}

// Luma of RGB, and RGB of luma, wherever what was asked for is not what a file holds.
TEST_F(ImageFolder, HasTheChannelsThatWereAskedForWhateverTheFilesHave) {
  for (const int c : {0, 1}) {
    for (int i = 0; i < 4; ++i) {
      const std::string at = absl::StrCat("train/", std::string(1, static_cast<char>('a' + c)));
      const int64_t channels = i % 2 == 0 ? 1 : 3;
      Write(absl::StrCat(at, "/", i, ".jpg"),
            AsString(JpegFile({.height = 24, .width = 24}, channels,
                              Bytes(24 * 24 * channels, static_cast<uint8_t>(50 + 10 * i)))));
    }
  }
  v1::Data data = Data();
  for (const int channels : {1, 3}) {
    v1::ImageTransform& t = *data.mutable_image_folder()->mutable_transform();
    t.set_channels(channels);
    t.mutable_mean()->Resize(channels, 0);
    t.mutable_std()->Resize(channels, 1);
    const auto dataset = OpenDataset(data, 0);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    ASSERT_EQ((*dataset)->input_bytes(), 16 * 16 * channels);
    const Samples samples = FillFrom(**dataset, Split::kTrain, {0, 1, 2});
    ASSERT_TRUE(samples.status.ok()) << samples.status;
    for (size_t i = 0; i < samples.pixels.size(); ++i) {
      const size_t sample = i / static_cast<size_t>(16 * 16 * channels);
      ASSERT_NEAR(samples.pixels[i], 50 + 10 * static_cast<int>(sample), 1) << channels;
    }
  }
}

v1::Data Archives(const std::vector<std::string>& train) {
  v1::Data data;
  v1::WebDatasetData& archives = *data.mutable_webdataset();
  for (const std::string& path : train) archives.add_train(path);
  archives.set_validation_fraction(0.2);
  archives.set_bad_records(v1::SKIP_BAD_RECORDS);
  SetTransform(*archives.mutable_transform());
  return data;
}

// To plan a job; the job itself reads it all.
TEST(WebDataset, OfMoreFilesThanAreCountedHasNoSizeYet) {
  const Folder folder;
  const std::vector<TarEntry> others(200'000, TarEntry{.name = "a.txt"});
  v1::Data data =
      Archives({folder.Write("0.tar", SampleArchive(4)), folder.Write("1.tar", TarFile(others))});
  const absl::Status status = ReadFacts(data).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("spec.data.webdataset.classes: is missing; archives of more than 200000"));
  data.mutable_webdataset()->set_classes(5);
  const auto facts = ReadFacts(data);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->classes, 5);
  EXPECT_EQ(facts->train_size, 0);
  EXPECT_EQ(facts->validation_size, 0);
  EXPECT_GT(facts->held_bytes, 0);
  EXPECT_LT(facts->held_bytes, 10'000);
}

// Gone since it was indexed.
TEST(WebDataset, OfAnArchiveThatGoesAwayBlamesNoImage) {
  const Folder folder;
  const auto dataset = OpenDataset(Archives({folder.Write("0.tar", SampleArchive(6))}), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::filesystem::remove(folder.path("0.tar"));
  EXPECT_TRUE(absl::IsUnavailable(Train(**dataset, 0, {0}).status));
  EXPECT_EQ((*dataset)->skipped(), 0);
}

TEST(WebDataset, HasTheSamplesOfAllArchivesInOrder) {
  const Folder folder;
  v1::Data data =
      Archives({folder.Write("0.tar", SampleArchive(4)), folder.Write("1.tar", SampleArchive(6))});
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 8);
  EXPECT_EQ((*dataset)->size(Split::kValidation), 2);
  EXPECT_EQ((*dataset)->facts().classes, 3);
  EXPECT_EQ(ReadFacts(data)->validation_size, 2);
  const Samples train = FillFrom(**dataset, Split::kTrain, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(train.labels, ElementsAre(0, 1, 2, 0, 0, 1, 2, 0));
  EXPECT_THAT(FillFrom(**dataset, Split::kValidation, {0, 1}).labels, ElementsAre(1, 2));
  EXPECT_TRUE(
      std::equal(train.pixels.begin(), train.pixels.begin() + 768, train.pixels.begin() + 4 * 768));
  data.mutable_webdataset()->clear_validation_fraction();
  data.mutable_webdataset()->add_validation(folder.path("0.tar"));
  data.mutable_webdataset()->set_classes(5);
  const auto own = OpenDataset(data, 0);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ((*own)->size(Split::kTrain), 10);
  EXPECT_EQ((*own)->size(Split::kValidation), 4);
  EXPECT_EQ((*own)->facts().classes, 5);
}

TEST(WebDataset, OfBadSamplesIsIndexedWithoutThemOrRefused) {
  const Folder folder;
  const std::string image = Plain(9);
  const std::vector<TarEntry> entries = {
      {.name = "dir/", .type = '5'},
      {.name = "dir/0.png", .content = image},
      {.name = "dir/0.seg.png", .content = "not the image"},
      {.name = "dir/0.cls", .content = "1\n"},
      {.name = "readme", .content = "no sample"},
      {.name = "no-class.png", .content = image},
      {.name = "no-image.cls", .content = "1"},
      {.name = "word.png", .content = image},
      {.name = "word.cls", .content = "cat"},
      {.name = "two.png", .content = image},
      {.name = "two.jpg", .content = image},
      {.name = "two.cls", .content = "1"},
      {.name = "../up.png", .content = image},
      {.name = "../up.cls", .content = "1"},
      {.name = "link.png", .type = '2'},
      {.name = "link.cls", .content = "1"},
      {.name = "dir/0.jpg", .content = image},
      {.name = "dir/0.cls", .content = "2"},
      {.name = "empty.jpg"},
      {.name = "empty.cls", .content = "2"},
      {.name = "only.json", .content = "{}"},
      {.name = "last.PNG", .content = image},
      {.name = "last.cls", .content = "0"},
  };
  v1::Data data = Archives({folder.Write("a.tar", TarFile(entries))});
  data.mutable_webdataset()->set_validation_fraction(0.5);
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 1);
  EXPECT_EQ((*dataset)->size(Split::kValidation), 1);
  EXPECT_THAT(FillFrom(**dataset, Split::kTrain, {0}).labels, ElementsAre(1));
  EXPECT_THAT(FillFrom(**dataset, Split::kValidation, {0}).labels, ElementsAre(0));
  EXPECT_EQ((*dataset)->skipped(), 8);
  EXPECT_THAT((*dataset)->TakeWarnings(),
              ElementsAre(HasSubstr("a.tar: sample 'no-class' has no .cls"),
                          HasSubstr("sample 'no-image' has no .jpg, .jpeg or .png"),
                          HasSubstr("sample 'word' has class 'cat', expected a number in [0, "),
                          HasSubstr("sample 'two' has two images"),
                          HasSubstr("sample '../up' '../up.png' is a path that leaves")));
  data.mutable_webdataset()->set_bad_records(v1::REFUSE_BAD_RECORDS);
  EXPECT_THAT(std::string(ReadFacts(data).status().message()),
              HasSubstr("a.tar: sample 'no-class' has no .cls; with bad_records"));
}

TEST(WebDataset, ThatIsBrokenOrEmptyIsRefused) {
  const Folder folder;
  const std::string good = SampleArchive(5);
  const auto refused = [&](const std::string& file) {
    const absl::Status status = ReadFacts(Archives({folder.Write("a.tar", file)})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(good.substr(0, 2000)), HasSubstr("is it truncated?"));
  EXPECT_THAT(refused(TarFile({})), HasSubstr("a.tar: found no sample of an image and a .cls"));
  EXPECT_THAT(refused(SampleArchive(1)), HasSubstr("1 samples are too few to cut a held-out"));
  EXPECT_TRUE(absl::IsNotFound(ReadFacts(Archives({folder.path("none.tar")})).status()));
}

TEST(WebDataset, ThatChangesUnderTheRunEndsIt) {
  const Folder folder;
  const auto dataset = OpenDataset(Archives({folder.Write("a.tar", SampleArchive(9))}), 0);
  ASSERT_TRUE(dataset.ok());
  folder.Write("a.tar", SampleArchive(1));
  EXPECT_EQ(FillFrom(**dataset, Split::kTrain, {0}).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

// The samples of `steps` steps of a batch of 6 in micro-batches of 3, and their labels.
std::vector<int> Steps(const Dataset& dataset, int64_t first, int64_t steps, int64_t threads) {
  Loader loader(dataset, {.seed = 5,
                          .batch_size = 6,
                          .samples = 6,
                          .micro_batch = 3,
                          .first_step = first,
                          .prefetch = 2,
                          .threads = threads});
  std::vector<int> all;
  for (int64_t i = 0; i < 2 * steps; ++i) {
    const auto batch = loader.Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    const auto* inputs = static_cast<const uint8_t*>(batch->inputs);
    const auto* targets = static_cast<const int32_t*>(batch->targets);
    all.insert(all.end(), inputs, inputs + 3 * 768);
    all.insert(all.end(), targets, targets + 3);
  }
  return all;
}

TEST(WebDataset, GivesTheSameBitsWithAnyNumberOfThreadsAndResumesAtTheExactSample) {
  const Folder folder;
  std::string damaged = SampleArchive(20);
  damaged.replace(damaged.find("\xff\xd8\xff"), 3, "xxx");  // a record to stand in for
  const auto dataset = OpenDataset(Archives({folder.Write("a.tar", damaged)}), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  constexpr int64_t kNumbers = 6 * 768 + 6;                  // of a step
  const std::vector<int> whole = Steps(**dataset, 0, 9, 1);  // more than three epochs
  EXPECT_EQ((*dataset)->skipped(), 1);
  for (const int64_t threads : {2, 5}) EXPECT_EQ(Steps(**dataset, 0, 9, threads), whole);
  for (const int64_t first : {1, 4, 8}) {
    const auto reopened = OpenDataset(Archives({folder.path("a.tar")}), 0);
    EXPECT_EQ(Steps(**reopened, first, 9 - first, 3),
              std::vector<int>(whole.begin() + first * kNumbers, whole.end()));
  }
}

TEST(Declared, ClassesAreEnoughToPlanWithoutFiles) {
  v1::Data data = Archives({"/nowhere.tar"});
  EXPECT_FALSE(DeclaredFacts(data).has_value());
  data.mutable_webdataset()->set_classes(10);
  const auto facts = DeclaredFacts(data);
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->height, 16);
  EXPECT_EQ(facts->channels, 3);
  EXPECT_EQ(facts->classes, 10);
  EXPECT_EQ(facts->train_size, 0);
  EXPECT_EQ(facts->held_bytes, 0);
  EXPECT_EQ(facts->bytes_per_thread, 12 << 20);
}

}  // namespace
}  // namespace trainyard::data
