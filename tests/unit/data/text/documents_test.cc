// Documents for masked language models: how text is cut, and which tokens are hidden.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/data/read_facts.h"
#include "executor/data/text/documents.h"
#include "executor/data/text/masking.h"
#include "tests/unit/data/files.h"

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Documents, LieBetweenEmptyLines) {
  EXPECT_THAT(DocumentsOf(""), IsEmpty());
  EXPECT_THAT(DocumentsOf("\n\n\n"), IsEmpty());
  EXPECT_THAT(DocumentsOf("a"), ElementsAre("a"));
  EXPECT_THAT(DocumentsOf("a\n"), ElementsAre("a"));
  EXPECT_THAT(DocumentsOf("a\nb\n\nc"), ElementsAre("a\nb", "c"));
  EXPECT_THAT(DocumentsOf("\n\na\n\n\n\nb\n\n"), ElementsAre("a", "b"));
  EXPECT_THAT(DocumentsOf("a\r\nb\r\n\r\nc\r\n"), ElementsAre("a\r\nb", "c"));
  EXPECT_THAT(DocumentsOf("a\n \nb"), ElementsAre("a\n \nb"));  // a space is no empty line
  EXPECT_THAT(DocumentsOf("\r"), IsEmpty());
}

TEST(Documents, AreCountedAlikeInPiecesOfAnySize) {
  for (const std::string text :
       {"", "\n\n\n", "a", "a\n", "a\nb\n\nc", "\n\na\n\n\n\nb\n\n", "a\r\nb\r\n\r\nc\r\n",
        "a\n \nb", "\r", "a\r", "a\r\r\n\nb", "ä\nöü\r\n\n€uro\n"}) {
    for (const bool bytes : {false, true}) {
      std::vector<int64_t> expected;
      for (const absl::string_view document : DocumentsOf(text)) {
        expected.push_back(std::count_if(document.begin(), document.end(),
                                         [&](char c) { return bytes || (c & 0xC0) != 0x80; }));
      }
      for (size_t piece = 1; piece <= text.size() + 1; ++piece) {
        std::vector<int64_t> counted;
        DocumentCounter counter(bytes, [&](int64_t n) { counted.push_back(n); });
        for (size_t at = 0; at < text.size(); at += piece) counter.Add(text.substr(at, piece));
        counter.Finish();
        EXPECT_EQ(counted, expected) << text << " in pieces of " << piece;
      }
    }
  }
}

constexpr plan::Windowing kMasked = {.context = 4, .mask_rate = 0.5};

v1::Data DocumentsAt(const std::string& path, double validation_fraction) {
  v1::Data data;
  data.mutable_text()->set_path(path);
  data.mutable_text()->set_validation_fraction(validation_fraction);
  return data;
}

struct DocumentWindow {
  std::vector<int32_t> inputs, targets;
  int32_t length = -7;

  // What the window was before some of it was hidden.
  std::vector<int32_t> ids() const {
    std::vector<int32_t> all = inputs;
    for (size_t i = 0; i < all.size(); ++i) {
      if (targets[i] >= 0) all[i] = targets[i];
    }
    return all;
  }
};

DocumentWindow Unpack(const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets,
                      size_t i, size_t n) {
  const size_t context = targets.size() / n;
  DocumentWindow window;
  window.inputs.assign(inputs.begin() + i * context, inputs.begin() + (i + 1) * context);
  window.targets.assign(targets.begin() + i * context, targets.begin() + (i + 1) * context);
  window.length = inputs[n * context + i];
  return window;
}

std::vector<DocumentWindow> WindowsOf(const Dataset& dataset, Split split,
                                      const std::vector<int64_t>& samples) {
  std::vector<int32_t> inputs(samples.size() * dataset.input_bytes() / 4, -7),
      targets(samples.size() * dataset.target_bytes() / 4, -7);
  EXPECT_TRUE(dataset.Fill(split, samples, inputs.data(), targets.data()).ok());
  std::vector<DocumentWindow> windows;
  for (size_t i = 0; i < samples.size(); ++i) {
    windows.push_back(Unpack(inputs, targets, i, samples.size()));
  }
  return windows;
}

TEST(Documents, AreCutIntoWindowsOfWhichTheLastIsPadded) {
  const Folder folder;
  // Ids by code point: newline 0, a 1 … j 10. Documents of 6, 4 and 1 characters.
  const v1::Data data = DocumentsAt(folder.Write("t", "abcdef\n\nghi\nj\n\n\nabcd\n\ne"), 0.2);
  const auto dataset = OpenDataset(data, kMasked).value();
  // 18 of 23 characters train: the cut leaves "ab" of the third document and "cd", "e" behind it.
  EXPECT_EQ(dataset->facts().kind, plan::DataFacts::Kind::kDocuments);
  EXPECT_EQ(dataset->facts().train_size, 5);
  EXPECT_EQ(dataset->facts().validation_size, 2);
  EXPECT_EQ(dataset->size(Split::kTrain), 5);
  const auto facts = ReadFacts(data, kMasked).value();
  EXPECT_EQ(facts.train_size, 5);
  EXPECT_EQ(facts.validation_size, 2);
  EXPECT_EQ(facts.vocab, 11);
  EXPECT_EQ(facts.kind, plan::DataFacts::Kind::kDocuments);

  const std::vector<DocumentWindow> windows =
      WindowsOf(*dataset, Split::kTrain, {1, 0, 2, 3, 4, -1});
  EXPECT_THAT(windows[0].ids(), ElementsAre(5, 6, 0, 0));
  EXPECT_EQ(windows[0].length, 2);
  EXPECT_THAT(windows[1].ids(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(windows[1].length, 4);
  EXPECT_THAT(windows[2].ids(), ElementsAre(7, 8, 9, 0));  // the newline within a document stays
  EXPECT_THAT(windows[3].ids(), ElementsAre(10, 0, 0, 0));
  EXPECT_THAT(windows[4].ids(), ElementsAre(1, 2, 0, 0));
  EXPECT_THAT(windows[5].inputs, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows[5].targets, ElementsAre(-1, -1, -1, -1));
  EXPECT_EQ(windows[5].length, 1);
  EXPECT_THAT(WindowsOf(*dataset, Split::kValidation, {0, 1})[0].ids(), ElementsAre(3, 4, 0, 0));
}

TEST(Documents, OfTokenFilesAreTheFiles) {
  const Folder folder;
  v1::Data data;
  data.mutable_tokens()->add_train(folder.Write("a", Ids16({1, 2, 3, 4, 5})));
  data.mutable_tokens()->add_train(folder.Write("b", Ids16({6})));
  data.mutable_tokens()->add_validation(folder.Write("c", Ids16({7, 8})));
  data.mutable_tokens()->set_format(v1::TokenData::UINT16);
  data.mutable_tokens()->set_vocab_size(9);
  const auto dataset = OpenDataset(data, kMasked).value();
  EXPECT_EQ(dataset->size(Split::kTrain), 3);
  EXPECT_EQ(ReadFacts(data, kMasked)->train_size, 3);
  EXPECT_EQ(ReadFacts(data, kMasked)->validation_size, 1);
  EXPECT_EQ(DeclaredFacts(data, kMasked)->kind, plan::DataFacts::Kind::kDocuments);
  const std::vector<DocumentWindow> windows = WindowsOf(*dataset, Split::kTrain, {0, 1, 2});
  EXPECT_THAT(windows[0].ids(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(windows[1].ids(), ElementsAre(5, 0, 0, 0));
  EXPECT_THAT(windows[2].ids(), ElementsAre(6, 0, 0, 0));
  EXPECT_EQ(windows[2].length, 1);
}

TEST(Documents, WithoutATokenAreRefused) {
  const Folder folder;
  const auto dataset = OpenDataset(DocumentsAt(folder.Write("t", "\n\n\n\n"), 0), kMasked);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(dataset.status().message()), HasSubstr("found no document"));
}

TEST(Documents, HideEightyTenTen) {
  constexpr int64_t kTokens = 200'000, kVocab = 50;
  std::vector<int32_t> ids(kTokens, 7), targets(kTokens);
  Mask({.rate = 0.15, .token = 50, .vocab = kVocab}, 1, 2, 3, kTokens, ids.data(), targets.data());
  int64_t drawn = 0, masked = 0, kept = 0, other = 0;
  std::vector<int64_t> replaced(kVocab);
  for (int64_t i = 0; i < kTokens; ++i) {
    if (targets[i] < 0) {
      EXPECT_EQ(targets[i], -1);
      EXPECT_EQ(ids[i], 7);
      continue;
    }
    EXPECT_EQ(targets[i], 7);
    ++drawn;
    masked += ids[i] == 50;
    kept += ids[i] == 7;
    if (ids[i] != 50 && ids[i] != 7) ++other, ++replaced[ids[i]];
  }
  // Within four standard deviations.
  const auto near = [](int64_t found, double share, double n) {
    EXPECT_NEAR(static_cast<double>(found), share * n, 4 * std::sqrt(n * share * (1 - share)));
  };
  near(drawn, 0.15, kTokens);
  near(masked, 0.8, static_cast<double>(drawn));
  near(kept, 0.1 + 0.1 / kVocab, static_cast<double>(drawn));
  near(other, 0.1 * (kVocab - 1) / kVocab, static_cast<double>(drawn));
  for (int64_t id = 0; id < kVocab; ++id) {
    if (id != 7) near(replaced[id], 1.0 / (kVocab - 1), static_cast<double>(other));
  }
}

TEST(Documents, AreHiddenByDrawsOfSeedEpochAndSampleAlone) {
  const auto hidden = [](uint64_t seed, int64_t epoch, int64_t sample) {
    std::vector<int32_t> ids(1000, 1), targets(1000);
    Mask({.rate = 0.3, .token = 2, .vocab = 2}, seed, epoch, sample, 1000, ids.data(),
         targets.data());
    return targets;
  };
  EXPECT_EQ(hidden(1, 2, 3), hidden(1, 2, 3));
  EXPECT_NE(hidden(1, 2, 3), hidden(2, 2, 3));
  EXPECT_NE(hidden(1, 2, 3), hidden(1, 3, 3));
  EXPECT_NE(hidden(1, 2, 3), hidden(1, 2, 4));
}

// A loader that begins later, or takes other micro-batches, hides the same tokens.
TEST(Documents, AreHiddenAlikeByAnyLoaderAndAnewInEachEpoch) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 12; ++i) text += "abcdabcdabcd\n\n";
  const auto dataset =
      OpenDataset(DocumentsAt(folder.Write("t", text), 0), {.context = 12, .mask_rate = 0.5})
          .value();
  const auto targets = [&](int64_t micro, int64_t first_step, int64_t steps) {
    Loader loader(
        *dataset,
        {.seed = 5, .batch_size = 4, .samples = 4, .micro_batch = micro, .first_step = first_step});
    std::vector<int32_t> all;
    for (int64_t i = 0; i < steps * 4 / micro; ++i) {
      const auto* at = static_cast<const int32_t*>(loader.Next()->targets);
      all.insert(all.end(), at, at + micro * 12);
    }
    return all;
  };
  const std::vector<int32_t> whole = targets(4, 0, 6);  // two epochs of 12 windows
  EXPECT_EQ(targets(2, 0, 6), whole);
  EXPECT_EQ(targets(1, 3, 3), std::vector<int32_t>(whole.begin() + whole.size() / 2, whole.end()));
  EXPECT_NE(targets(4, 0, 3), targets(4, 3, 3));
}

}  // namespace
}  // namespace trainyard::data
