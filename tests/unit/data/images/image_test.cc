#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "executor/data/read_facts.h"
#include "executor/plan/spec/facts.h"
#include "tests/unit/data/files.h"

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Pixel i of all is i % 256; labels 0, 1, 2, 0, 1, …
std::string Pixels(size_t n) {
  std::string pixels(n, '\0');
  for (size_t i = 0; i < n; ++i) pixels[i] = static_cast<char>(i);
  return pixels;
}

std::string Labels(size_t n) {
  std::string labels(n, '\0');
  for (size_t i = 0; i < n; ++i) labels[i] = static_cast<char>(i % 3);
  return labels;
}

// 10 training images of 2x3.
v1::Data TenImages(const Folder& folder) {
  v1::Data data;
  v1::IdxData& idx = *data.mutable_idx();
  idx.set_train_images(folder.Write("images", IdxImagesFile(10, 2, 3, Pixels(60))));
  idx.set_train_labels(folder.Write("labels.gz", Gzip(IdxLabelsFile(Labels(10)))));
  idx.set_validation_fraction(0.2);
  idx.set_mean(0);
  idx.set_std(1);
  return data;
}

struct Samples {
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
};

Samples FillFrom(const Dataset& dataset, Split split, const std::vector<int64_t>& ids) {
  Samples samples;
  samples.pixels.resize(ids.size() * dataset.input_bytes(), 77);
  samples.labels.resize(ids.size(), -7);
  EXPECT_TRUE(dataset.Fill(split, ids, samples.pixels.data(), samples.labels.data()).ok());
  return samples;
}

TEST(Images, AreReadPlainAndGzipped) {
  const Folder folder;
  const v1::Data data = TenImages(folder);
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const plan::DataFacts& facts = (*dataset)->facts();
  EXPECT_EQ(facts.height, 2);
  EXPECT_EQ(facts.width, 3);
  EXPECT_EQ(facts.channels, 1);
  EXPECT_EQ(facts.classes, 3);
  EXPECT_EQ(facts.train_size, 8);
  EXPECT_EQ(facts.validation_size, 2);
  EXPECT_FALSE((*dataset)->sampled_with_replacement());
  EXPECT_EQ((*dataset)->bytes(), 60 + 10);

  const Samples samples = FillFrom(**dataset, Split::kTrain, {7, 0});
  EXPECT_THAT(samples.labels, ElementsAre(1, 0));
  EXPECT_EQ(samples.pixels[0], 42);
  EXPECT_EQ(samples.pixels[6], 0);
  EXPECT_EQ(samples.pixels[7], 1);
}

TEST(Images, HeldOutOnesComeFromTheEndOfTrain) {
  const Folder folder;
  const auto dataset = OpenDataset(TenImages(folder), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 8);
  EXPECT_EQ((*dataset)->size(Split::kValidation), 2);
  const Samples samples = FillFrom(**dataset, Split::kValidation, {0, 1});
  EXPECT_EQ(samples.pixels[0], 48);
  EXPECT_THAT(samples.labels, ElementsAre(8 % 3, 9 % 3));
}

TEST(Images, PaddingRowsDoNotCount) {
  const Folder folder;
  const auto dataset = OpenDataset(TenImages(folder), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Samples samples = FillFrom(**dataset, Split::kValidation, {1, -1});
  EXPECT_THAT(samples.labels, ElementsAre(0, -1));
  EXPECT_EQ(std::accumulate(samples.pixels.begin() + 6, samples.pixels.end(), 0), 0);
}

// The device does it.
TEST(Images, AreNotNormalised) {
  const Folder folder;
  v1::Data data = TenImages(folder);
  data.mutable_idx()->set_mean(0.25);
  data.mutable_idx()->set_std(0.5);
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->input_bytes(), 6);
  EXPECT_EQ(FillFrom(**dataset, Split::kTrain, {1}).pixels[5], 11);
}

// Training samples `ids` in `epoch`.
Samples TrainFrom(const Dataset& dataset, int64_t epoch, const std::vector<int64_t>& ids) {
  Samples samples;
  samples.pixels.resize(ids.size() * dataset.input_bytes(), 77);
  samples.labels.resize(ids.size(), -7);
  const std::vector<int64_t> epochs(ids.size(), epoch);
  EXPECT_TRUE(
      dataset.FillForTraining(1, ids, epochs, samples.pixels.data(), samples.labels.data()).ok());
  return samples;
}

TEST(Images, ComeWithTheirPlacesForTrainingOnly) {
  const Folder folder;  // 1000 images of 2x3, all alike
  std::string pixels;
  for (int i = 0; i < 1000; ++i) pixels += "\x0a\x14\x1e\x28\x32\x3c";
  v1::Data data;
  v1::IdxData& idx = *data.mutable_idx();
  idx.set_train_images(folder.Write("images", IdxImagesFile(1000, 2, 3, pixels)));
  idx.set_train_labels(folder.Write("labels", IdxLabelsFile(Labels(1000))));
  idx.set_validation_fraction(0.1);
  idx.set_mean(0);
  idx.set_std(1);
  idx.set_crop_padding(1);
  idx.set_flip(true);
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int64_t> ids(900);
  std::iota(ids.begin(), ids.end(), 0);
  const Samples once = TrainFrom(**dataset, 0, ids);
  const Samples plain = FillFrom(**dataset, Split::kTrain, ids);
  EXPECT_EQ(once.labels, plain.labels);
  EXPECT_TRUE(std::equal(once.pixels.begin(), once.pixels.begin() + 900 * 6, plain.pixels.begin()));
  EXPECT_EQ(once.pixels, TrainFrom(**dataset, 0, ids).pixels);
  EXPECT_NE(once.pixels, TrainFrom(**dataset, 1, ids).pixels);

  // Every place of the padded image, as it is and mirrored: 3 x 3 x 2 kinds, all as often.
  std::map<std::array<int32_t, 3>, int> kinds;
  for (int i = 0; i < 900; ++i) {
    std::array<int32_t, 3> place{};
    memcpy(&place, once.pixels.data() + 900 * 6 + i * sizeof(place), sizeof(place));
    ++kinds[place];
  }
  ASSERT_EQ(kinds.size(), 18u);
  for (const auto& [place, count] : kinds) {
    EXPECT_LE(std::max(std::abs(place[0]), std::abs(place[1])), 1);
    EXPECT_EQ(place[2] & ~1, 0);
    EXPECT_NEAR(count, 50, 30);
  }
  EXPECT_EQ(FillFrom(**dataset, Split::kValidation, {3}).pixels[5], 60);
}

TEST(Images, OfATestFileAreTheHeldOutSplit) {
  const Folder folder;
  v1::Data data = TenImages(folder);
  data.mutable_idx()->clear_validation_fraction();
  data.mutable_idx()->set_test_images(
      folder.Write("t", Gzip(IdxImagesFile(3, 2, 3, std::string(18, '\xff')))));
  data.mutable_idx()->set_test_labels("file://" + folder.Write("tl", IdxLabelsFile({4, 0, 1})));
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(Split::kTrain), 10);
  EXPECT_EQ((*dataset)->size(Split::kValidation), 3);
  EXPECT_EQ((*dataset)->facts().classes, 5);
  const Samples samples = FillFrom(**dataset, Split::kValidation, {0});
  EXPECT_EQ(samples.pixels[0], 255);
  EXPECT_EQ(samples.labels[0], 4);
}

TEST(Images, FactsAreThoseOfTheOpenDataSet) {
  const Folder folder;
  const v1::Data data = TenImages(folder);
  const auto facts = ReadFacts(data);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->height, 2);
  EXPECT_EQ(facts->classes, 3);
  EXPECT_EQ(facts->train_size, 8);
  EXPECT_EQ(facts->validation_size, 2);
  EXPECT_FALSE(DeclaredFacts(data).has_value());
  v1::Data declared = data;
  declared.mutable_idx()->set_height(28);
  declared.mutable_idx()->set_width(28);
  declared.mutable_idx()->set_classes(10);
  EXPECT_EQ(DeclaredFacts(declared)->classes, 10);
}

// --- hostile files -----------------------------------------------------------------------------

struct BadFiles {
  const char* name;
  std::function<void(const Folder&, v1::IdxData&)> spoil;
  absl::StatusCode code;
  const char* message;  // part of it
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const std::vector<BadFiles>& BadFilesTable() {
  static const auto& table = *new std::vector<BadFiles>{
      {"missing", [](const Folder& f, auto& d) { d.set_train_images(f.path("none")); },
       absl::StatusCode::kNotFound, "/none: No such file or directory"},
      {"folder", [](const Folder& f, auto& d) { d.set_train_images(f.path(".")); }, kInvalid,
       "found a folder, expected a regular file"},
      {"pipe",
       [](const Folder& f, auto& d) {
         mkfifo(f.path("pipe").c_str(), 0600);
         d.set_train_images(f.path("pipe"));
       },
       kInvalid, "pipe: found a special file, expected a regular file"},
      {"device", [](const Folder&, auto& d) { d.set_train_labels("/dev/zero"); }, kInvalid,
       "/dev/zero: found a special file"},
      {"s3", [](const Folder&, auto& d) { d.set_train_images("s3://bucket/key"); },
       absl::StatusCode::kUnimplemented, "the scheme s3:// is not built yet"},
      {"relative", [](const Folder&, auto& d) { d.set_train_images("images"); }, kInvalid,
       "expected an absolute path or file:///path"},
      {"empty", [](const Folder& f, auto& d) { d.set_train_images(f.Write("e", "")); }, kInvalid,
       "/e: is empty"},
      {"one byte", [](const Folder& f, auto& d) { d.set_train_images(f.Write("e", "x")); },
       kInvalid, "/e: ends after 1 bytes, expected at least 4"},
      {"wrong magic",
       [](const Folder& f, auto& d) { d.set_train_images(f.Write("e", "PNG\rabcdefgh")); },
       kInvalid, "/e: found the magic number 0x504e470d, expected 0x00000803 of IDX images"},
      {"labels for images", [](const Folder&, auto& d) { d.set_train_images(d.train_labels()); },
       kInvalid,
       "found the magic number 0x00000801 (this is a file of labels), expected 0x00000803"},
      {"images for labels", [](const Folder&, auto& d) { d.set_train_labels(d.train_images()); },
       kInvalid,
       "found the magic number 0x00000803 (this is a file of images), expected 0x00000801"},
      {"short header",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", Idx(0x803, {10, 2}, "")));
       },
       kInvalid, "/e: ends after 12 bytes"},
      {"overflowing dimensions",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", IdxImagesFile(0xffffffff, 0xffffffff, 0xffffffff, "x")));
       },
       kInvalid,
       "declares 4294967295 samples of 4294967295x4294967295, more than the file can hold"},
      {"product that wraps to a small one",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", IdxImagesFile(0x80000000, 0x80000000, 4, "x")));
       },
       kInvalid, "more than the file can hold"},
      {"lying gzip",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", Gzip(IdxImagesFile(1000000, 28, 28, "x"))));
       },
       kInvalid, "declares 1000000 samples of 28x28, more than the file can hold"},
      {"no image",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", IdxImagesFile(0, 2, 3, "")));
       },
       kInvalid, "/e: declares 0 samples of 2x3: there is nothing to train on"},
      {"no pixel",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", IdxImagesFile(10, 0, 3, "")));
       },
       kInvalid, "/e: declares 10 samples of 0x3"},
      {"too short",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", IdxImagesFile(10, 2, 3, Pixels(50))));
       },
       kInvalid, "/e: ends after 66 bytes, expected at least 76"},
      {"too long",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", IdxImagesFile(10, 2, 3, Pixels(61))));
       },
       kInvalid, "/e: goes on after the 76 bytes that its header declares"},
      {"truncated gzip",
       [](const Folder& f, auto& d) {
         const std::string whole = Gzip(IdxImagesFile(10, 2, 3, Pixels(60)));
         d.set_train_images(f.Write("e", whole.substr(0, whole.size() / 2)));
       },
       kInvalid, "/e: truncated gzip: ends after"},
      {"gzip without its checksum",
       [](const Folder& f, auto& d) {
         const std::string whole = Gzip(IdxImagesFile(10, 2, 3, Pixels(60)));
         d.set_train_images(f.Write("e", whole.substr(0, whole.size() - 5)));
       },
       kInvalid, "/e: truncated gzip: ends after"},
      {"gzip with a wrong checksum",
       [](const Folder& f, auto& d) {
         std::string whole = Gzip(IdxImagesFile(10, 2, 3, Pixels(60)));
         whole[whole.size() - 6] ^= 1;
         d.set_train_images(f.Write("e", whole));
       },
       kInvalid, "/e: broken gzip: incorrect data check"},
      {"gzip of nonsense",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", "\x1f\x8b\x08" + std::string(40, '\xff')));
       },
       kInvalid, "/e: broken gzip"},
      {"counts differ",
       [](const Folder& f, auto& d) { d.set_train_labels(f.Write("e", IdxLabelsFile(Labels(9)))); },
       kInvalid, "/e: found 9 labels, expected 10 as there are images in"},
      {"label out of range", [](const Folder&, auto& d) { d.set_classes(2); }, kInvalid,
       "labels.gz: found label 2 of sample 2, expected [0, 2)"},
      {"other size", [](const Folder&, auto& d) { d.set_height(28); }, kInvalid,
       "found images of 2x3, spec.data.idx declares 28xany"},
      {"test images of another size",
       [](const Folder& f, auto& d) {
         d.set_test_images(f.Write("t", IdxImagesFile(1, 3, 2, Pixels(6))));
         d.set_test_labels(f.Write("tl", IdxLabelsFile(Labels(1))));
       },
       kInvalid, "/t: found images of 3x2, expected 2x3 as in"},
      {"one image",
       [](const Folder& f, auto& d) {
         d.set_train_images(f.Write("e", IdxImagesFile(1, 2, 3, Pixels(6))));
         d.set_train_labels(f.Write("l", IdxLabelsFile(Labels(1))));
       },
       kInvalid, "/e: 1 images are too few to cut a held-out split from"},
  };
  return table;
}

TEST(Images, RefuseHostileFiles) {
  for (const BadFiles& bad : BadFilesTable()) {
    SCOPED_TRACE(bad.name);
    const Folder folder;
    v1::Data data = TenImages(folder);
    bad.spoil(folder, *data.mutable_idx());
    const absl::Status status = OpenDataset(data, 0).status();
    EXPECT_EQ(status.code(), bad.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

TEST(Images, ThatCannotBeReadAreNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const Folder folder;
  const v1::Data data = TenImages(folder);
  chmod(data.idx().train_images().c_str(), 0);
  EXPECT_EQ(ReadFacts(data).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(Images, OfSeveralGzipMembersAreOneFile) {
  const Folder folder;
  v1::Data data = TenImages(folder);
  const std::string whole = IdxImagesFile(10, 2, 3, Pixels(60));
  data.mutable_idx()->set_train_images(
      folder.Write("two", Gzip(whole.substr(0, 30)) + Gzip(whole.substr(30))));
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(FillFrom(**dataset, Split::kTrain, {7}).pixels[0], 42);
}

// --- Debian's dataset-fashion-mnist, figures taken with numpy ------------------------------------

TEST(FashionMnist, IsReadToTheLastPixel) {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  if (access((folder + "train-images-idx3-ubyte.gz").c_str(), R_OK) != 0) {
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  }
  v1::Data data;
  v1::IdxData& idx = *data.mutable_idx();
  idx.set_train_images(folder + "train-images-idx3-ubyte.gz");
  idx.set_train_labels(folder + "train-labels-idx1-ubyte.gz");
  idx.set_test_images(folder + "t10k-images-idx3-ubyte.gz");
  idx.set_test_labels(folder + "t10k-labels-idx1-ubyte.gz");
  idx.set_mean(0);
  idx.set_std(1.0 / 255);  // pixels as they are in the file
  const auto dataset = OpenDataset(data, 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const plan::DataFacts& facts = (*dataset)->facts();
  EXPECT_EQ(facts.height, 28);
  EXPECT_EQ(facts.width, 28);
  EXPECT_EQ(facts.classes, 10);
  ASSERT_EQ(facts.train_size, 60000);
  ASSERT_EQ(facts.validation_size, 10000);

  const auto sum_of = [&](Split split, std::vector<int64_t>& per_class) {
    double sum = 0;
    for (int64_t first = 0; first < (*dataset)->size(split); first += 1000) {
      std::vector<int64_t> ids(1000);
      std::iota(ids.begin(), ids.end(), first);
      const Samples samples = FillFrom(**dataset, split, ids);
      for (const float v : samples.pixels) sum += v;
      for (const int32_t label : samples.labels) ++per_class[label];
    }
    return sum;
  };
  std::vector<int64_t> train(10), test(10);
  EXPECT_NEAR(sum_of(Split::kTrain, train), 3431114169.0, 2000);  // the last bit of each float
  EXPECT_NEAR(sum_of(Split::kValidation, test), 573469082.0, 400);
  EXPECT_THAT(train, testing::Each(6000));
  EXPECT_THAT(test, testing::Each(1000));
  std::vector<int64_t> first(10);
  std::iota(first.begin(), first.end(), 0);
  EXPECT_THAT(FillFrom(**dataset, Split::kTrain, first).labels,
              ElementsAre(9, 0, 0, 3, 0, 2, 7, 2, 5, 5));
  EXPECT_THAT(FillFrom(**dataset, Split::kValidation, first).labels,
              ElementsAre(9, 2, 1, 1, 6, 1, 4, 6, 5, 7));
}

}  // namespace
}  // namespace trainyard::data
