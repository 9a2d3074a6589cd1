// What each source says that its data set will hold in memory, against what the open one holds.

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "executor/data/read_facts.h"
#include "tests/unit/data/files.h"

namespace trainyard::data {
namespace {

struct Held {
  int64_t said = 0, held = 0, samples = 0;
};

// The files are read to their end, so that planning and opening must say the same.
Held HeldBy(const v1::Data& data, const plan::Windowing& windowing) {
  const auto facts = ReadFacts(data, windowing);
  const auto dataset = OpenDataset(data, windowing);
  EXPECT_TRUE(facts.ok()) << facts.status();
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  if (!facts.ok() || !dataset.ok()) return {};
  EXPECT_EQ((*dataset)->facts().held_bytes, facts->held_bytes);
  EXPECT_EQ((*dataset)->facts().bytes_per_thread, facts->bytes_per_thread);
  return {.said = facts->held_bytes,
          .held = (*dataset)->bytes(),
          .samples = facts->train_size + facts->validation_size};
}

TEST(HeldBytes, OfIdxImagesAreTheirPixelsAndLabels) {
  const Folder folder;
  v1::Data data;
  v1::IdxData& idx = *data.mutable_idx();
  idx.set_train_images(folder.Write("i", IdxImagesFile(40, 5, 7, std::string(40 * 35, 'x'))));
  idx.set_train_labels(folder.Write("l", IdxLabelsFile(std::string(40, '\3'))));
  idx.set_validation_fraction(0.1);
  const int64_t three = 3;  // more than a label of one byte takes
  Held held = HeldBy(data, {});
  EXPECT_EQ(held.said, held.held + three * 40);
  idx.set_test_images(folder.Write("ti", IdxImagesFile(9, 5, 7, std::string(9 * 35, 'x'))));
  idx.set_test_labels(folder.Write("tl", IdxLabelsFile(std::string(9, '\3'))));
  held = HeldBy(data, {});
  EXPECT_EQ(held.said, held.held + three * 49);
}

// Ids past 16 bits take 32.
TEST(HeldBytes, OfTextAreItsIds) {
  const Folder folder;
  v1::Data data;
  v1::TextData& text = *data.mutable_text();
  std::string content;
  for (int i = 0; i < 500; ++i) absl::StrAppend(&content, "a line of text, and ", i, "\n");
  text.set_path(folder.Write("t", content));
  text.set_validation_fraction(0.1);
  const auto size = static_cast<int64_t>(content.size());
  for (const auto& [vocab, bytes] : {std::pair{300, 2}, {65536, 2}, {65537, 4}}) {
    text.set_vocab_size(vocab);
    text.set_tokenizer(v1::TextData::CHARACTERS);
    Held held = HeldBy(data, {.context = 8});
    EXPECT_EQ(held.said, bytes * size);
    EXPECT_EQ(held.said, held.held);
    text.set_tokenizer(v1::TextData::BPE);
    held = HeldBy(data, {.context = 8});
    EXPECT_EQ(held.said, bytes * held.samples);
    EXPECT_EQ(held.said, held.held);
  }
}

TEST(HeldBytes, OfDocumentsAreFullWindows) {
  const Folder folder;
  v1::Data data;
  std::string content;
  for (int i = 0; i < 50; ++i) absl::StrAppend(&content, std::string(1 + i % 7, 'x'), "\n\n");
  data.mutable_text()->set_path(folder.Write("t", content));
  data.mutable_text()->set_validation_fraction(0.1);
  const Held held = HeldBy(data, {.context = 4, .mask_rate = 0.5});
  EXPECT_EQ(held.said, held.samples * 4 * 2);
  EXPECT_GE(held.said, held.held);
  EXPECT_LE(held.said, 2 * held.held);
}

TEST(HeldBytes, OfTokenFilesAreNone) {
  const Folder folder;
  v1::Data data;
  data.mutable_tokens()->add_train(folder.Write("a", Ids16({1, 2, 3, 4, 5, 6})));
  data.mutable_tokens()->set_format(v1::TokenData::UINT16);
  data.mutable_tokens()->set_vocab_size(10);
  const Held held = HeldBy(data, {.context = 2});
  EXPECT_EQ(held.said, 0);
  EXPECT_EQ(held.held, 0);
}

// A table grows by blocks of 4096 rows.
TEST(HeldBytes, OfTablesAreTheirRows) {
  const Folder folder;
  v1::Data data;
  v1::CsvData& csv = *data.mutable_csv();
  std::string rows = "click,price,age,city\n";
  for (int i = 0; i < 4096; ++i) absl::StrAppend(&rows, i % 2, ",", i, ",3,x\n");
  csv.set_train(folder.Write("t.csv", rows));
  csv.set_label("click");
  csv.add_dense("price");
  csv.add_dense("age");
  csv.add_categorical("city");
  csv.set_hash_buckets(100);
  csv.set_validation_fraction(0.1);
  Held held = HeldBy(data, {});
  EXPECT_EQ(held.said, held.held);
  csv.set_validation(csv.train());
  held = HeldBy(data, {});
  EXPECT_EQ(held.said, held.held);

  v1::CriteoData& criteo = *data.mutable_criteo();
  rows = "";
  for (int i = 0; i < 4096; ++i) {
    absl::StrAppend(&rows, i % 2);
    for (int j = 0; j < 39; ++j) absl::StrAppend(&rows, "\t", j);
    absl::StrAppend(&rows, "\n");
  }
  criteo.set_train(folder.Write("t.tsv", rows));
  criteo.set_hash_buckets(100);
  criteo.set_validation_fraction(0.1);
  held = HeldBy(data, {});
  EXPECT_EQ(held.said, held.held);
}

TEST(HeldBytes, OfGeneratedClicksAreNextToNone) {
  v1::Data data;
  v1::ClicksData& clicks = *data.mutable_clicks();
  clicks.set_train_samples(1000);
  clicks.set_validation_samples(100);
  clicks.set_dense(13);
  clicks.set_categorical(26);
  clicks.set_categories(50);
  const Held held = HeldBy(data, {});
  EXPECT_EQ(held.said, 0);
  EXPECT_LT(held.held, 1000);
}

}  // namespace
}  // namespace trainyard::data
