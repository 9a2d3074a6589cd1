#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "executor/data/dataset/dataset.h"
#include "executor/data/open_dataset.h"
#include "executor/data/read_facts.h"
#include "executor/data/tokenizer/vocabulary.h"
#include "tests/unit/data/files.h"

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Window {
  std::vector<int32_t> inputs, targets;
  absl::Status status;
};

Window WindowOf(const Dataset& dataset, Split split, int64_t sample) {
  const size_t context = dataset.input_bytes() / sizeof(int32_t);
  Window window{.inputs = std::vector<int32_t>(context, -7),
                .targets = std::vector<int32_t>(context, -7)};
  window.status = dataset.Fill(split, {sample}, window.inputs.data(), window.targets.data());
  return window;
}

v1::Data TextAt(const std::string& path, double validation_fraction,
                v1::TextData::Tokenizer tokenizer = v1::TextData::CHARACTERS) {
  v1::Data data;
  data.mutable_text()->set_path(path);
  data.mutable_text()->set_validation_fraction(validation_fraction);
  data.mutable_text()->set_tokenizer(tokenizer);
  return data;
}

v1::Data TokensAt(const std::vector<std::string>& train, const std::vector<std::string>& validation,
                  v1::TokenData::Format format, int32_t vocab) {
  v1::Data data;
  for (const std::string& uri : train) data.mutable_tokens()->add_train(uri);
  for (const std::string& uri : validation) data.mutable_tokens()->add_validation(uri);
  data.mutable_tokens()->set_format(format);
  data.mutable_tokens()->set_vocab_size(vocab);
  return data;
}

absl::Status ErrorOf(const v1::Data& data, int64_t context = 3) {
  return OpenDataset(data, context).status();
}

void ExpectRefused(const absl::Status& status, const char* message,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

// --- text --------------------------------------------------------------------------------------

TEST(Text, CharactersAreNumberedByCodePoint) {
  const Folder folder;
  // b, é, a, newline, U+1F600: ids 2 3 1 0 4.
  const v1::Data data = TextAt(folder.Write("t",
                                            "b\xC3\xA9"
                                            "a\n\xF0\x9F\x98\x80"
                                            "bbbb"),
                               0);
  const auto dataset = OpenDataset(data, 4);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->facts().vocab, 5);
  EXPECT_EQ((*dataset)->facts().train_size, 9);
  EXPECT_EQ((*dataset)->facts().validation_size, 0);
  EXPECT_EQ((*dataset)->size(Split::kValidation), 0);
  const Window window = WindowOf(**dataset, Split::kTrain, 0);
  EXPECT_THAT(window.inputs, ElementsAre(2, 3, 1, 0));
  EXPECT_THAT(window.targets, ElementsAre(3, 1, 0, 4));
  EXPECT_EQ((*dataset)->tokenizer()->Decode({3, 4, 2}),
            "\xC3\xA9\xF0\x9F\x98\x80"
            "b");
}

TEST(Text, BytesNeedNoUtf8) {
  const Folder folder;
  const v1::Data data = TextAt(folder.Write("t", "a\xff\x80z"), 0, v1::TextData::BYTES);
  const auto dataset = OpenDataset(data, 3);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->facts().vocab, 256);
  EXPECT_THAT(WindowOf(**dataset, Split::kTrain, 0).inputs, ElementsAre('a', 255, 128));
  EXPECT_EQ(DeclaredFacts(data)->vocab, 256);
}

TEST(Text, NoWindowCrossesTheCut) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 20; ++i) text.push_back(static_cast<char>('a' + i));
  const auto dataset = OpenDataset(TextAt(folder.Write("t", text), 0.4), 3);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  // 12 train: windows start at 0 to 8, and the last target of the last is token 11.
  EXPECT_EQ((*dataset)->facts().train_size, 12);
  EXPECT_EQ((*dataset)->size(Split::kTrain), 9);
  EXPECT_THAT(WindowOf(**dataset, Split::kTrain, 8).targets, ElementsAre(9, 10, 11));
  // 8 validate: 7 targets in windows of 3, the last one padded.
  EXPECT_EQ((*dataset)->size(Split::kValidation), 3);
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 0).inputs, ElementsAre(12, 13, 14));
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 0).targets, ElementsAre(13, 14, 15));
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 2).inputs, ElementsAre(18, 0, 0));
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 2).targets, ElementsAre(19, -1, -1));
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, -1).targets, ElementsAre(-1, -1, -1));
}

TEST(Text, ValidationPredictsEveryTokenOnce) {
  const Folder folder;
  for (const int length : {20, 41, 43, 44, 100}) {
    std::string text;
    for (int i = 0; i < length; ++i) text.push_back(static_cast<char>(i));
    const auto dataset = OpenDataset(TextAt(folder.Write("t", text), 0.5, v1::TextData::BYTES), 7);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    std::vector<int32_t> predicted;
    for (int64_t w = 0; w < (*dataset)->size(Split::kValidation); ++w) {
      const Window window = WindowOf(**dataset, Split::kValidation, w);
      for (size_t i = 0; i < window.targets.size(); ++i) {
        if (window.targets[i] < 0) continue;
        EXPECT_EQ(window.targets[i], window.inputs[i] + 1);
        predicted.push_back(window.targets[i]);
      }
    }
    const int64_t train = (*dataset)->facts().train_size;
    ASSERT_EQ(static_cast<int64_t>(predicted.size()), length - train - 1);
    for (size_t i = 0; i < predicted.size(); ++i)
      EXPECT_EQ(predicted[i], train + 1 + static_cast<int>(i));
  }
}

TEST(Text, IsCutAsNanoGptCutsIt) {
  const Folder folder;
  const auto facts = ReadFacts(TextAt(folder.Write("t", std::string(1115394, 'a')), 0.1));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->train_size, 1003854);
  EXPECT_EQ(facts->validation_size, 111540);
}

TEST(Text, FactsOfALargeTextAreThoseOfTheOpenDataSet) {
  const Folder folder;
  std::string text;  // characters lie across the ends of pieces; documents of many lengths
  while (text.size() < 600'000)
    absl::StrAppend(&text, text.size(), " ä€😀\r\n", text.size() % 3 ? "" : "\n");
  v1::Data data;
  data.mutable_text()->set_path(folder.Write("text.txt", text));
  data.mutable_text()->set_validation_fraction(0.3);
  for (const auto tokenizer : {v1::TextData::CHARACTERS, v1::TextData::BYTES}) {
    data.mutable_text()->set_tokenizer(tokenizer);
    for (const plan::Windowing& windowing :
         {plan::Windowing{.context = 7}, plan::Windowing{.context = 7, .mask_rate = 0.5}}) {
      const auto facts = ReadFacts(data, windowing);
      ASSERT_TRUE(facts.ok()) << facts.status();
      const auto dataset = OpenDataset(data, windowing);
      ASSERT_TRUE(dataset.ok()) << dataset.status();
      EXPECT_EQ(facts->vocab, (*dataset)->facts().vocab);
      EXPECT_EQ(facts->train_size, (*dataset)->facts().train_size);
      EXPECT_EQ(facts->validation_size, (*dataset)->facts().validation_size);
    }
  }
}

TEST(Text, IsRefusedByThePlaceInTheFile) {
  const Folder folder;
  v1::Data data;
  data.mutable_text()->set_path(folder.Write("text.txt", std::string(300'000, 'a') + "\xff"));
  EXPECT_THAT(std::string(ReadFacts(data, {.context = 4}).status().message()),
              testing::HasSubstr("offset 300000"));
}

TEST(Text, RefusesHostileFiles) {
  const Folder folder;
  ExpectRefused(ErrorOf(TextAt(folder.path("none"), 0)), "/none: No such file",
                absl::StatusCode::kNotFound);
  ExpectRefused(ErrorOf(TextAt(folder.Write("e", ""), 0)), "/e: is empty");
  ExpectRefused(ErrorOf(TextAt(folder.Write("e",
                                            "abc\xff"
                                            "def"),
                               0)),
                "/e: byte 0xff at offset 3 is not UTF-8; use the tokenizer BYTES");
  ExpectRefused(ErrorOf(TextAt(folder.Write("e", "ab\xE2\x82"), 0)),
                "byte 0xe2 at offset 2 is not UTF-8");
  ExpectRefused(ErrorOf(TextAt(folder.Write("e", "\xC0\x80"), 0)), "byte 0xc0 at offset 0");
  ExpectRefused(ErrorOf(TextAt(folder.Write("e", "\xED\xA0\x80"), 0)), "byte 0xed at offset 0");
  ExpectRefused(ErrorOf(TextAt(folder.Write("e", "\xF4\x90\x80\x80"), 0)), "byte 0xf4 at offset 0");
  ExpectRefused(ErrorOf(TextAt(folder.Write("e", "abc"), 0)),
                "/e: found 3 training tokens in 1 parts, expected one of at least 4");
  ExpectRefused(ErrorOf(TextAt(folder.Write("e", "abcdefghij"), 0.1)),
                "/e: the held-out split of 1 tokens has nothing to predict");
  v1::Data declared = TextAt(folder.Write("e", "abcdef"), 0);
  declared.mutable_text()->set_vocab_size(5);
  ExpectRefused(ErrorOf(declared),
                "/e: found 6 distinct characters, spec.data.text.vocab_size declares 5");
  declared.mutable_text()->set_vocab_size(9);
  EXPECT_EQ(ReadFacts(declared)->vocab, 9);
  EXPECT_EQ(DeclaredFacts(declared)->vocab, 9);
  // Sparse, so that no byte of it is written: only its size is looked at.
  ASSERT_EQ(truncate(folder.Write("huge", "x").c_str(), (int64_t{1} << 30) + 1), 0);
  ExpectRefused(ErrorOf(TextAt(folder.path("huge"), 0)), "expected at most 1073741824",
                absl::StatusCode::kResourceExhausted);
}

// Trained to `vocab` tokens.
v1::Data BpeAt(const std::string& path, double validation_fraction, int32_t vocab) {
  v1::Data data = TextAt(path, validation_fraction, v1::TextData::BPE);
  data.mutable_text()->set_vocab_size(vocab);
  return data;
}

// All ids of a split in order, the first window's first included.
std::vector<int32_t> IdsOf(const Dataset& dataset, Split split) {
  std::vector<int32_t> ids;
  const int64_t context = dataset.input_bytes() / static_cast<int64_t>(sizeof(int32_t));
  for (int64_t w = 0; w < dataset.size(split); w += split == Split::kTrain ? context : 1) {
    for (const int32_t id : WindowOf(dataset, split, w).inputs) ids.push_back(id);
  }
  return ids;
}

TEST(BpeText, IsTokenizedByWhatTheTrainingPartTeaches) {
  const Folder folder;
  // 20 characters train, 10 validate; "zz" is frequent only in the part that validates.
  const std::string text = "ab ab ab ab ab ab abzz zz zz z";
  const auto dataset = OpenDataset(BpeAt(folder.Write("t", text), 1.0 / 3, 300), 2);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Tokenizer& tokenizer = *(*dataset)->tokenizer();
  EXPECT_EQ(tokenizer.size(), 258);  // 256 bytes, "ab", " ab"
  EXPECT_EQ((*dataset)->facts().vocab, 300);
  EXPECT_EQ((*dataset)->facts().train_size, 7);
  EXPECT_EQ((*dataset)->facts().validation_size, 10);
  EXPECT_THAT(IdsOf(**dataset, Split::kTrain), ElementsAre(256, 257, 257, 257, 257, 257));
  EXPECT_THAT((*dataset)->TakeWarnings(),
              ElementsAre(HasSubstr("vocab_size: 42 of 300 tokens stay unused, since " +
                                    folder.path("t"))));
  const auto facts = ReadFacts(BpeAt(folder.path("t"), 1.0 / 3, 300));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->train_size, 7);
  EXPECT_EQ(facts->validation_size, 10);
  EXPECT_EQ(facts->vocab, 300);
}

TEST(TextFromCheckpoint, TakesTheTokenizerThatTheFolderHolds) {
  const Folder folder;
  const std::string text = folder.Write("text", "abcabcaacc");
  v1::Data data = TextAt(text, 0, v1::TextData::FROM_CHECKPOINT);
  data.mutable_text()->set_tokenizer_file("file://" + folder.path("."));
  EXPECT_EQ(ReadFacts(data, {.context = 2}).status().code(), absl::StatusCode::kNotFound)
      << "the folder has none, or is not seen";
  const Vocabulary wide = Vocabulary::Characters("abcdefg").value();
  folder.Write("vocabulary.json", wide.Files()[0].text);
  auto facts = ReadFacts(data, {.context = 2});
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->vocab, 7);
  EXPECT_EQ((*TokenizerOf(data))->Files()[0].text, wide.Files()[0].text);
  const auto dataset = OpenDataset(data, 2);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_THAT(WindowOf(**dataset, Split::kTrain, 1).inputs, ElementsAre(1, 2));
  // The submission says so, not the run.
  folder.Write("text", "abcabcaaQc");
  EXPECT_THAT(std::string(ReadFacts(data, {.context = 2}).status().message()),
              HasSubstr("the character U+0051 at offset 8 is not in the vocabulary"));
  folder.Write("vocabulary.json", Vocabulary::Bytes().Files()[0].text);
  EXPECT_EQ(ReadFacts(data, {.context = 2})->vocab, 256);
  folder.Write("tokenizer.json", "{}");
  EXPECT_THAT(std::string(ReadFacts(data, {.context = 2}).status().message()),
              HasSubstr("tokenizer.json: "))
      << "it comes first";
}

TEST(BpeText, NoTokenCrossesTheCut) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "abcdefgh";
  for (const double fraction : {0.1, 0.25, 0.333, 0.5}) {
    const auto dataset = OpenDataset(BpeAt(folder.Write("t", text), fraction, 300), 1);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    const auto train = static_cast<size_t>(static_cast<double>(text.size()) * (1 - fraction));
    const auto ids = IdsOf(**dataset, Split::kTrain);
    EXPECT_TRUE(text.substr(0, train).rfind((*dataset)->tokenizer()->Decode(ids), 0) == 0);
    EXPECT_EQ(
        (*dataset)->tokenizer()->Decode(IdsOf(**dataset, Split::kValidation)),
        text.substr(train,
                    (*dataset)->tokenizer()->Decode(IdsOf(**dataset, Split::kValidation)).size()));
  }
}

TEST(BpeText, IsReadWithATokenizerThatOthersMade) {
  const Folder folder;
  const std::string text = "ab ab abc";
  const auto trained = OpenDataset(BpeAt(folder.Write("t", text), 0, 300), 2);
  ASSERT_TRUE(trained.ok()) << trained.status();
  const NamedText file = (*trained)->tokenizer()->Files()[0];
  v1::Data data = TextAt(folder.path("t"), 0, v1::TextData::BPE);
  data.mutable_text()->set_tokenizer_file(folder.Write("tokenizer.json", file.text));
  const auto dataset = OpenDataset(data, 2);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->facts().vocab, (*trained)->tokenizer()->size());
  EXPECT_EQ((*dataset)->tokenizer()->Files()[0].text, file.text);
  EXPECT_EQ(IdsOf(**dataset, Split::kTrain), IdsOf(**trained, Split::kTrain));
  EXPECT_THAT((*dataset)->TakeWarnings(), ElementsAre());
  EXPECT_EQ(ReadFacts(data)->vocab, (*dataset)->facts().vocab);
  EXPECT_EQ(DeclaredFacts(data), std::nullopt);

  data.mutable_text()->set_vocab_size(256);
  ExpectRefused(ErrorOf(data), "/tokenizer.json: found 25");
  ExpectRefused(ReadFacts(data).status(), "tokens, spec.data.text.vocab_size declares 256");
  data.mutable_text()->set_vocab_size(50257);
  EXPECT_EQ(DeclaredFacts(data)->vocab, 50257);
  folder.Write("tokenizer.json", "{}");
  ExpectRefused(ErrorOf(data), "/tokenizer.json: pre_tokenizer: found null, expected ByteLevel",
                absl::StatusCode::kUnimplemented);
  data.mutable_text()->set_tokenizer_file(folder.path("absent"));
  ExpectRefused(ErrorOf(data), "/absent: No such file", absl::StatusCode::kNotFound);
}

TEST(BpeText, IsNotCountedWhereThatWouldTakeLong) {
  const Folder folder;
  std::string text;
  while (text.size() <= size_t{16} << 20) text += "a line of text that is as good as any\n";
  const auto facts = ReadFacts(BpeAt(folder.Write("t", text), 0.1, 1000));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->vocab, 1000);
  EXPECT_EQ(facts->train_size, 0);
  // The text, and beside it what is learnt from it.
  EXPECT_EQ(facts->held_bytes, static_cast<int64_t>(3 * text.size()));
}

TEST(BpeText, RefusesWhatIsNotUtf8ByItsPlaceInTheFile) {
  const Folder folder;
  ExpectRefused(ErrorOf(BpeAt(folder.Write("e", "abcdefgh\xff"), 0.5, 256)),
                "/e: byte 0xff at offset 8 is not UTF-8; use the tokenizer BYTES");
}

TEST(BpeText, OfManyTokensKeepsIdsPastSixteenBits) {
  const Folder folder;
  v1::Data data = BpeAt(folder.Write("t", "ab ab ab"), 0, 100000);
  const auto narrow = OpenDataset(BpeAt(folder.path("t"), 0, 300), 1);
  const auto wide = OpenDataset(data, 1);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ((*wide)->bytes(), 2 * (*narrow)->bytes());
  EXPECT_EQ(IdsOf(**wide, Split::kTrain), IdsOf(**narrow, Split::kTrain));
}

// --- token files -------------------------------------------------------------------------------

TEST(Tokens, OfEachFormatAreTheSame) {
  const Folder folder;
  const std::vector<uint32_t> ids = {5, 300, 0, 65535, 7, 8};
  const std::pair<v1::TokenData::Format, std::string> files[] = {
      {v1::TokenData::UINT16, folder.Write("16", Ids16(ids))},
      {v1::TokenData::UINT32, folder.Write("32", Ids32(ids))},
      {v1::TokenData::LLMC, folder.Write("llmc", LlmcFile(ids))}};
  for (const auto& [format, path] : files) {
    const auto dataset = OpenDataset(TokensAt({path}, {path}, format, 65536), 4);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->facts().train_size, 6);
    EXPECT_EQ((*dataset)->size(Split::kTrain), 2);
    EXPECT_EQ((*dataset)->size(Split::kValidation), 2);
    EXPECT_EQ((*dataset)->tokenizer(), nullptr);
    EXPECT_THAT(WindowOf(**dataset, Split::kTrain, 1).inputs, ElementsAre(300, 0, 65535, 7));
    EXPECT_THAT(WindowOf(**dataset, Split::kTrain, 1).targets, ElementsAre(0, 65535, 7, 8));
    EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 1).targets, ElementsAre(8, -1, -1, -1));
  }
}

TEST(Tokens, OfSeveralFilesKeepTheirWindowsApart) {
  const Folder folder;
  const v1::Data data = TokensAt(
      {folder.Write("a", Ids16({0, 1, 2, 3, 4})), folder.Write("b", Ids16({9, 9})),
       folder.Write("c", Ids16({10, 11, 12, 13}))},
      {folder.Write("v", Ids16({20, 21})), folder.Write("w", Ids16({30, 31, 32, 33, 34, 35}))},
      v1::TokenData::UINT16, 100);
  const auto dataset = OpenDataset(data, 3);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->facts().train_size, 11);
  ASSERT_EQ((*dataset)->size(Split::kTrain), 3);  // two in a, none in b, one in c
  EXPECT_THAT(WindowOf(**dataset, Split::kTrain, 1).targets, ElementsAre(2, 3, 4));
  EXPECT_THAT(WindowOf(**dataset, Split::kTrain, 2).inputs, ElementsAre(10, 11, 12));
  ASSERT_EQ((*dataset)->size(Split::kValidation), 3);
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 0).targets, ElementsAre(21, -1, -1));
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 1).targets, ElementsAre(31, 32, 33));
  EXPECT_THAT(WindowOf(**dataset, Split::kValidation, 2).targets, ElementsAre(34, 35, -1));
}

TEST(Tokens, OfWindowsLongerThanOneReadAreWhole) {
  const Folder folder;
  std::vector<uint32_t> ids(20000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i);
  for (const auto format : {v1::TokenData::UINT16, v1::TokenData::UINT32}) {
    const std::string file = format == v1::TokenData::UINT16 ? Ids16(ids) : Ids32(ids);
    for (const int64_t context : {2047, 2048, 4095, 4096, 9999}) {
      const auto dataset =
          OpenDataset(TokensAt({folder.Write("t", file)}, {}, format, 20000), context);
      ASSERT_TRUE(dataset.ok()) << dataset.status();
      const Window window = WindowOf(**dataset, Split::kTrain, 17);
      for (int64_t i = 0; i < context; ++i) {
        ASSERT_EQ(window.inputs[i], 17 + i);
        ASSERT_EQ(window.targets[i], 18 + i);
      }
    }
  }
}

TEST(Tokens, RefusesHostileFiles) {
  const Folder folder;
  const auto error = [&](const std::string& content, v1::TokenData::Format format) {
    return ErrorOf(TokensAt({folder.Write("e", content)}, {}, format, 100));
  };
  ExpectRefused(error("", v1::TokenData::UINT16), "/e: holds no token");
  ExpectRefused(error("abc", v1::TokenData::UINT16), "/e: found 3 bytes, expected a multiple of 2");
  ExpectRefused(error("abcdef", v1::TokenData::UINT32),
                "/e: found 6 bytes, expected a multiple of 4");
  ExpectRefused(error("abcd", v1::TokenData::LLMC), "/e: found 4 bytes, expected a header of 1024");
  ExpectRefused(
      error(std::string(2000, 'x'), v1::TokenData::LLMC),
      "/e: found magic 2021161080 version 2021161080, expected 20240520 version 1 of llm.c");
  ExpectRefused(error(LlmcFile({1, 2, 3, 4, 5}) + "x", v1::TokenData::LLMC),
                "/e: declares 5 tokens, but holds 11 bytes of them");
  std::string negative = LlmcFile({1, 2});
  negative[11] = '\xff';
  ExpectRefused(error(negative, v1::TokenData::LLMC), "tokens, but holds 4 bytes of them");
  ExpectRefused(error(Ids16({1, 2, 3}), v1::TokenData::UINT16),
                "/e: found 3 training tokens in 1 parts, expected one of at least 4");
  ExpectRefused(ErrorOf(TokensAt({folder.path("none")}, {}, v1::TokenData::UINT16, 100)),
                "/none: No such file", absl::StatusCode::kNotFound);
}

TEST(Tokens, OutOfRangeAreNamedWithFileAndPosition) {
  const Folder folder;
  const auto dataset =
      OpenDataset(TokensAt({folder.Write("t", Ids32({1, 2, 3, 4, 99, 0xffffffff, 5, 6}))}, {},
                           v1::TokenData::UINT32, 99),
                  3);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE(WindowOf(**dataset, Split::kTrain, 0).status.ok());
  ExpectRefused(WindowOf(**dataset, Split::kTrain, 1).status,
                "/t: found id 99 at token 4, expected [0, 99)");
  ExpectRefused(WindowOf(**dataset, Split::kTrain, 4).status, "/t: found id 99 at token 4");
  const auto all = OpenDataset(TokensAt({folder.path("t")}, {}, v1::TokenData::UINT32, 1 << 24), 3);
  ExpectRefused(WindowOf(**all, Split::kTrain, 3).status, "/t: found id 4294967295 at token 5");
}

TEST(Tokens, OutOfRangeAreNamedInEveryFormatAndSplit) {
  const Folder folder;
  std::vector<uint32_t> ids(10000, 3);
  ids[9000] = 50257;  // far enough to be in another read than the window's first id
  const std::pair<v1::TokenData::Format, std::string> files[] = {
      {v1::TokenData::UINT16, folder.Write("16", Ids16(ids))},
      {v1::TokenData::UINT32, folder.Write("32", Ids32(ids))},
      {v1::TokenData::LLMC, folder.Write("llmc", LlmcFile(ids))}};
  for (const auto& [format, path] : files) {
    const auto dataset = OpenDataset(TokensAt({path}, {path}, format, 50257), 8999);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    const std::string expected = path + ": found id 50257 at token 9000, expected [0, 50257)";
    EXPECT_TRUE(WindowOf(**dataset, Split::kTrain, 0).status.ok());
    ExpectRefused(WindowOf(**dataset, Split::kTrain, 1).status, expected.c_str());
    EXPECT_TRUE(WindowOf(**dataset, Split::kValidation, 0).status.ok());
    ExpectRefused(WindowOf(**dataset, Split::kValidation, 1).status, expected.c_str());
  }
}

TEST(Tokens, OfAFileThatShrankAreDataLoss) {
  const Folder folder;
  const std::string path = folder.Write("t", Ids16({1, 2, 3, 4, 5, 6}));
  const auto dataset = OpenDataset(TokensAt({path}, {}, v1::TokenData::UINT16, 10), 3);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ(truncate(path.c_str(), 6), 0);
  ExpectRefused(WindowOf(**dataset, Split::kTrain, 1).status, "/t: ends at byte 6",
                absl::StatusCode::kDataLoss);
}

// --- vocabulary --------------------------------------------------------------------------------

TEST(Vocabulary, EncodesAndDecodes) {
  const auto vocabulary = Vocabulary::Characters("hello w\xC3\xB6rld");
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ(vocabulary->size(), 9);
  const auto ids = vocabulary->Encode("w\xC3\xB6rd");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(vocabulary->Decode(*ids), "w\xC3\xB6rd");
  EXPECT_EQ(vocabulary->Decode({-1, 9, 1000}), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(vocabulary->Encode("he x").status().message(),
            "the character U+0078 at offset 3 is not in the vocabulary of 9 characters");
  EXPECT_FALSE(vocabulary->Encode("\xF0\x9F\x98\x80").ok());
  EXPECT_FALSE(vocabulary->Encode("\x80").ok());
}

TEST(Vocabulary, ComesBackFromItsFile) {
  const std::string zero("a\0\"\\\n\x7f", 6);
  const auto vocabulary = Vocabulary::Characters(zero + "\xF0\x9F\x98\x80\xC3\xA9");
  ASSERT_TRUE(vocabulary.ok());
  const auto again = Vocabulary::FromJson(vocabulary->Files()[0].text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->size(), 8);
  EXPECT_EQ(again->Files()[0].text, vocabulary->Files()[0].text);
  EXPECT_EQ(*again->Encode(zero), *vocabulary->Encode(zero));
  EXPECT_TRUE(Vocabulary::FromJson(Vocabulary::Bytes().Files()[0].text)->bytes());
}

TEST(Vocabulary, RefusesHostileFiles) {
  for (const char* json : {"", "[", "[]", "{}", "{\"type\": 3}", "{\"type\": \"characters\"}",
                           "{\"type\": \"characters\", \"vocabulary\": [1]}",
                           "{\"type\": \"characters\", \"vocabulary\": \"\"}",
                           "{\"type\": \"characters\", \"vocabulary\": \"ba\"}",
                           "{\"type\": \"characters\", \"vocabulary\": \"aa\"}",
                           "{\"type\": \"characters\", \"vocabulary\": \"\xff\"}"}) {
    EXPECT_EQ(Vocabulary::FromJson(json).status().code(), absl::StatusCode::kInvalidArgument)
        << json;
  }
  EXPECT_EQ(Vocabulary::FromJson("{\"type\": \"bpe\"}").status().message(),
            "type: found 'bpe', expected characters or bytes");
}

}  // namespace
}  // namespace trainyard::data
