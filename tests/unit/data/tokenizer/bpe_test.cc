// Byte-level BPE: how text is cut, what is learnt from it, and how it is encoded. What can be known
// only from `tokenizers` itself is compared with it in tests/parity.

#include "executor/data/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/data/files/utf8.h"
#include "executor/data/tokenizer/added_tokens.h"
#include "executor/data/tokenizer/bpe_trainer.h"
#include "executor/data/tokenizer/byte_level.h"
#include "executor/data/tokenizer/tokenizer_json.h"
#include "executor/data/tokenizer/unicode_classes.h"

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> Words(absl::string_view text, WordPattern pattern = WordPattern::kGpt2) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = WordEnd(text, at, pattern);
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

// A tokenizer with these merges, each of what its two tokens spell, in order.
Bpe WithMerges(const std::vector<std::pair<std::string, std::string>>& merges) {
  BpeModel model = TrainBpe("", 256).value();
  const auto id_of = [&](const std::string& bytes) {
    const auto found = std::find(model.tokens.begin(), model.tokens.end(), bytes);
    return static_cast<int32_t>(found - model.tokens.begin());
  };
  for (const auto& [left, right] : merges) {
    const BpeModel::Merge merge = {id_of(left), id_of(right), id_of(left + right)};
    if (merge.whole == static_cast<int32_t>(model.tokens.size())) {
      model.tokens.push_back(left + right);
    }
    model.merges.push_back(merge);
  }
  return Bpe(std::move(model), "");
}

std::vector<std::string> Tokens(const Bpe& bpe, absl::string_view text) {
  const auto ids = bpe.Encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status();
  std::vector<std::string> tokens;
  for (const int32_t id : *ids) tokens.push_back(bpe.BytesOf(id));
  return tokens;
}

std::vector<std::string> Learnt(const BpeModel& model) {
  std::vector<std::string> merges;
  for (const BpeModel::Merge& merge : model.merges) {
    merges.push_back(model.tokens[merge.left] + "+" + model.tokens[merge.right]);
  }
  return merges;
}

// --- bytes as characters -----------------------------------------------------------------------

TEST(ByteLevel, WritesBytesAsGpt2Does) {
  EXPECT_EQ(ToByteLevel("Hello world"), "Hello\xC4\xA0world");  // Ġ, U+0120
  EXPECT_EQ(ToByteLevel("\n"), "\xC4\x8A");                     // Ċ, U+010A
  EXPECT_EQ(ToByteLevel(absl::string_view("\0", 1)), "\xC4\x80");
  EXPECT_EQ(ToByteLevel("\x7F"), "\xC4\xA1");              // U+0121
  EXPECT_EQ(ToByteLevel("\xAD"), "\xC5\x83");              // U+0143, the last
  EXPECT_EQ(ToByteLevel("\xC3\xA9"), "\xC3\x83\xC2\xA9");  // é: Ã©
}

TEST(ByteLevel, ReadsBackEveryByteAndNothingElse) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(FromByteLevel(ToByteLevel(all)), all);
  EXPECT_EQ(FromByteLevel(" "), std::nullopt);
  EXPECT_EQ(FromByteLevel("\xC5\x84"), std::nullopt);      // U+0144
  EXPECT_EQ(FromByteLevel("\xE4\xB8\xAD"), std::nullopt);  // 中
}

// --- words -------------------------------------------------------------------------------------

TEST(UnicodeClasses, KnowLettersNumbersAndSpacesOfManyScripts) {
  const std::pair<char32_t, CharClass> cases[] = {
      {'a', CharClass::kLetter},     {'0', CharClass::kNumber},    {'_', CharClass::kOther},
      {' ', CharClass::kSpace},      {0x0B, CharClass::kSpace},    {0x1C, CharClass::kOther},
      {0x85, CharClass::kSpace},     {0xA0, CharClass::kSpace},    {0xAA, CharClass::kLetter},
      {0xB2, CharClass::kNumber},    {0xE9, CharClass::kLetter},   {0x0301, CharClass::kOther},
      {0x0660, CharClass::kNumber},  {0x180E, CharClass::kOther},  {0x200B, CharClass::kOther},
      {0x2028, CharClass::kSpace},   {0x2167, CharClass::kNumber}, {0x3000, CharClass::kSpace},
      {0x4E2D, CharClass::kLetter},  {0x1F600, CharClass::kOther}, {0x1C89, CharClass::kLetter},
      {0x323AF, CharClass::kLetter}, {0x323B0, CharClass::kOther}, {0x10FFFF, CharClass::kOther}};
  for (const auto& [c, kind] : cases) {
    EXPECT_EQ(ClassOf(c), kind) << std::hex << static_cast<uint32_t>(c);
  }
}

TEST(Words, AreCutAsGpt2Does) {
  EXPECT_THAT(Words("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(Words("it's we'll I'VE"), ElementsAre("it", "'s", " we", "'ll", " I", "'", "VE"));
  EXPECT_THAT(Words("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(Words("a \n\n b  "), ElementsAre("a", " \n\n", " b", "  "));
  EXPECT_THAT(Words("x\t\ty"), ElementsAre("x", "\t", "\t", "y"));
  EXPECT_THAT(Words("v1.23 (ok)!"), ElementsAre("v", "1", ".", "23", " (", "ok", ")!"));
  EXPECT_THAT(Words("!'s 's"), ElementsAre("!'", "s", " '", "s"));
  EXPECT_THAT(Words("caf\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87\xE2\x80\xA6"),
              ElementsAre("caf\xC3\xA9", " \xE4\xB8\xAD\xE6\x96\x87", "\xE2\x80\xA6"));
  // The last space before a word belongs to it, a no-break space to none.
  EXPECT_THAT(Words("a\xC2\xA0"
                    "b"),
              ElementsAre("a", "\xC2\xA0", "b"));
  EXPECT_THAT(Words("'"), ElementsAre("'"));
  EXPECT_THAT(Words("'r"), ElementsAre("'", "r"));
}

TEST(Words, AreCutAsLlama3Does) {
  const auto words = [](absl::string_view text) { return Words(text, WordPattern::kLlama3); };
  EXPECT_THAT(words("I'VE 12345"), ElementsAre("I", "'VE", " ", "123", "45"));
  EXPECT_THAT(words("f(x)\n\ny"), ElementsAre("f", "(x", ")\n\n", "y"));
  EXPECT_THAT(words("a\n  b"), ElementsAre("a", "\n", " ", " b"));
  EXPECT_THAT(words(" \n \n x"), ElementsAre(" \n \n", " x"));
  EXPECT_THAT(words("\tx \ty"), ElementsAre("\tx", " ", "\ty"));
  EXPECT_THAT(words("\nx"), ElementsAre("\n", "x"));
  EXPECT_THAT(words("'\xC5\xBFx"), ElementsAre("'\xC5\xBF", "x"));  // a long s
  EXPECT_THAT(words("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(words(" ?!\r\n"), ElementsAre(" ?!\r\n"));
}

// --- training ----------------------------------------------------------------------------------

TEST(TrainBpe, BeginsWithTheBytesUnderGpt2sIds) {
  const BpeModel model = TrainBpe("", 256).value();
  ASSERT_EQ(model.tokens.size(), 256u);
  EXPECT_EQ(model.byte_ids['!'], 0);
  EXPECT_EQ(model.byte_ids['a'], 64);
  EXPECT_EQ(model.byte_ids['\n'], 198);
  EXPECT_EQ(model.byte_ids[' '], 220);
  EXPECT_EQ(model.byte_ids[0xAD], 255);
}

TEST(TrainBpe, MergesTheMostFrequentPairAgainAndAgain) {
  // ab 4, " a" 3, bc 1; then " ab" 3; then nothing comes twice.
  EXPECT_THAT(Learnt(TrainBpe("ab ab ab abc", 1000).value()), ElementsAre("a+b", " +ab"));
  EXPECT_THAT(Learnt(TrainBpe("ab ab ab abc", 257).value()), ElementsAre("a+b"));
}

TEST(TrainBpe, TakesTheLowerIdsOfEquallyFrequentPairs) {
  // xy 2, " x" 1, ab 2, " a" 2: first ab (64, 65), then xy (87, 88), then " ab" (220, 256).
  EXPECT_THAT(Learnt(TrainBpe("xy xy ab ab", 1000).value()), ElementsAre("a+b", "x+y", " +ab"));
}

TEST(TrainBpe, ForgetsThePairsThatAMergeTakesApart) {
  // ab 5, bc 3, bd 2; once ab is one, neither bc nor bd is left.
  EXPECT_THAT(Learnt(TrainBpe("abc\nabc\nabc\nabd\nabd", 1000).value()),
              ElementsAre("a+b", "ab+c", "ab+d"));
  // bc 5, ab 3: the same on the other side.
  EXPECT_THAT(Learnt(TrainBpe("abc\nabc\nabc\ndbc\ndbc", 1000).value()),
              ElementsAre("b+c", "a+bc", "d+bc"));
}

TEST(TrainBpe, CountsOverlapsAsTheyAreMerged) {
  // aa 3 times in each word; then two aa, side by side in each.
  EXPECT_THAT(Learnt(TrainBpe("aaaa\naaaa", 1000).value()), ElementsAre("a+a", "aa+aa"));
  EXPECT_THAT(Learnt(TrainBpe("aaa\naaa", 1000).value()), ElementsAre("a+a", "aa+a"));
}

TEST(TrainBpe, NeverMergesAcrossWords) {
  for (const std::string& merge : Learnt(TrainBpe("1a 1a 1a 1a", 1000).value())) {
    EXPECT_NE(merge, "1+a");
  }
}

TEST(TrainBpe, GivesTheSameModelWhateverTheHashOfItsTables) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "w" + std::to_string(i * i % 977) + " ";
  const std::string once = BpeToJson(TrainBpe(text, 900).value());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(BpeToJson(TrainBpe(text, 900).value()), once);
}

TEST(TrainBpe, TakesALongWordInTimeThatGrowsWithItsLength) {
  // One word of a million letters: what costs a pass over the word for each merge would take an
  // hour.
  std::string dna(1 << 20, 'A');
  uint32_t state = 1;
  for (char& c : dna) c = "ACGT"[(state = state * 1664525 + 1013904223) >> 30];
  const absl::StatusOr<BpeModel> model = TrainBpe(dna, 4096);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->tokens.size(), 4096u);
}

TEST(TrainBpe, RefusesWhatIsNotUtf8AndWordsWithoutEnd) {
  EXPECT_EQ(TrainBpe("abc\xff", 300).status().message(),
            "byte 0xff at offset 3 is not UTF-8; use the tokenizer BYTES");
  EXPECT_THAT(std::string(TrainBpe(std::string(kLongestWord + 1, 'a'), 300).status().message()),
              HasSubstr("found a word of 16777217 bytes"));
}

// --- encoding ----------------------------------------------------------------------------------

TEST(Bpe, MergesInTheOrderOfTheMergesNotOfTheText) {
  const Bpe bpe = WithMerges({{"b", "c"}, {"a", "b"}, {"a", "bc"}});
  EXPECT_THAT(Tokens(bpe, "abc"), ElementsAre("abc"));
  EXPECT_THAT(Tokens(bpe, "abab"), ElementsAre("ab", "ab"));
  EXPECT_THAT(Tokens(WithMerges({{"a", "b"}, {"b", "c"}}), "abc"), ElementsAre("ab", "c"));
}

TEST(Bpe, MergesTheLeftmostOfEqualPairsFirst) {
  const Bpe bpe = WithMerges({{"a", "a"}});
  EXPECT_THAT(Tokens(bpe, "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(Tokens(bpe, "aaaaa"), ElementsAre("aa", "aa", "a"));
}

TEST(Bpe, DecodesAnyTextToTheSameBytes) {
  const std::string text =
      "The caf\xC3\xA9's  \xF0\x9F\x98\x80\xF0\x9F\x98\x80 \xE4\xB8\xAD\xE6\x96\x87\n\n\t12,345.60 "
      "\xC2\xA0!";
  for (const int64_t vocab : {256, 300, 400}) {
    BpeModel model = TrainBpe(text + text + text, vocab).value();
    const Bpe bpe(std::move(model), "");
    const auto ids = bpe.Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(bpe.Decode(*ids), text);
  }
}

TEST(Bpe, HasTokensThatEndWithinACharacter) {
  const Bpe bpe = WithMerges({{"\xE4", "\xB8"}});
  EXPECT_THAT(Tokens(bpe, "\xE4\xB8\xAD"), ElementsAre("\xE4\xB8", "\xAD"));
  EXPECT_EQ(bpe.BytesOf(-1), "\xEF\xBF\xBD");
  EXPECT_EQ(bpe.BytesOf(257), "\xEF\xBF\xBD");
}

TEST(Bpe, FindsTheLongestAddedTokenAndEncodesTheRest) {
  BpeModel model = TrainBpe("", 256).value();
  for (const char* content : {"<|end|>", "<|end|><", "x"}) {
    const auto id = static_cast<int32_t>(model.tokens.size());
    model.added.push_back({.content = content, .id = id, .normalized = content[0] == 'x'});
    model.tokens.emplace_back(content);
  }
  const Bpe bpe(std::move(model), "");
  EXPECT_THAT(Tokens(bpe, "a<|end|>b"), ElementsAre("a", "<|end|>", "b"));
  EXPECT_THAT(Tokens(bpe, "<|end|><|end|>"), ElementsAre("<|end|><", "|", "e", "n", "d", "|", ">"));
  EXPECT_THAT(*bpe.Encode("xx"), ElementsAre(258, 258));
  EXPECT_THAT(*bpe.Encode(""), IsEmpty());
}

// Many that begin alike, met at every place of a text, none of which is there.
TEST(Bpe, SearchesForManyAddedTokensInTimeThatGrowsWithTheText) {
  std::vector<AddedToken> tokens;
  for (int32_t i = 0; i < 60'000; ++i) {
    tokens.push_back({.content = absl::StrCat("<<<<", i, ">"), .id = 256 + i});
  }
  const AddedTokens added(std::move(tokens));
  const std::string text = std::string(8 << 20, '<') + "59999>";
  const absl::Time start = absl::Now();
  const std::vector<TextPiece> pieces = added.Split(text);
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].text, "<<<<59999>");
  EXPECT_EQ(pieces[1].id, 256 + 59999);
}

TEST(Bpe, PutsASpaceBeforeAPartOfTextWhereAsked) {
  BpeModel model = TrainBpe("", 256).value();
  model.add_prefix_space = true;
  model.added.push_back({.content = "#", .id = model.byte_ids['#']});
  const Bpe bpe(std::move(model), "");
  EXPECT_THAT(Tokens(bpe, "a"), ElementsAre(" ", "a"));
  EXPECT_THAT(Tokens(bpe, " a"), ElementsAre(" ", "a"));
  EXPECT_THAT(Tokens(bpe, "\n"), ElementsAre(" ", "\n"));
  EXPECT_THAT(Tokens(bpe, "a#b"), ElementsAre(" ", "a", "#", " ", "b"));
}

TEST(Bpe, EncodesWordsThatItHasSeenBeforeAsTheFirstTime) {
  const Bpe bpe = WithMerges({{"a", "b"}, {" ", "ab"}});
  std::string text;
  for (int i = 0; i < 1000; ++i) text += " ab" + std::string(i % 80, 'c');
  const auto ids = bpe.Encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(bpe.Decode(*ids), text);
  int64_t expected = 0;
  for (int i = 0; i < 1000; ++i) expected += i % 80 == 0 ? 1 : 1 + i % 80;
  EXPECT_EQ(static_cast<int64_t>(ids->size()), expected);
}

TEST(Bpe, TakesALongWordInTimeThatGrowsWithItsLength) {
  const Bpe bpe = WithMerges({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  const auto ids = bpe.Encode(std::string(1 << 20, 'a'));
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), size_t{1} << 17);
  EXPECT_THAT(std::string(bpe.Encode(std::string(kLongestWord + 1, 'a')).status().message()),
              HasSubstr("expected at most 16777216"));
}

// --- characters out of pieces ------------------------------------------------------------------

std::string Streamed(const std::vector<std::string>& pieces) {
  Utf8Stream stream;
  std::string all;
  for (const std::string& piece : pieces) all += stream.Add(piece) + "|";
  return all + stream.Finish();
}

TEST(Utf8Stream, HoldsACharacterBackUntilItIsWhole) {
  EXPECT_EQ(Streamed({"a", "\xE4", "\xB8", "\xAD", "b"}), "a|||\xE4\xB8\xAD|b|");
  EXPECT_EQ(Streamed({"\xF0\x9F\x98\x80\xF0\x9F", "\x98\x80"}),
            "\xF0\x9F\x98\x80|\xF0\x9F\x98\x80|");
  EXPECT_EQ(Streamed({"ab", "", "c"}), "ab||c|");
}

TEST(Utf8Stream, ReplacesWhatCanBeNoCharacter) {
  const std::string u = "\xEF\xBF\xBD";
  EXPECT_EQ(Streamed({"\x80z"}), u + "z|");
  EXPECT_EQ(Streamed({"\xE4\xB8", "z"}), "|" + u + "z|");
  EXPECT_EQ(Streamed({"\xE4\xB8"}), "|" + u);
  EXPECT_EQ(Streamed({"\xED\xA0\x80"}), u + u + u + "|");  // a surrogate
  EXPECT_EQ(Streamed({"\xC0\xAF"}), u + u + "|");          // overlong
  EXPECT_EQ(Streamed({"\xF4\x90"}), u + u + "|");          // past U+10FFFF
  // The Unicode Standard's own example, table 3-8.
  EXPECT_EQ(Streamed({"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"}),
            "a" + u + u + u + "b" + u + "c" + u + u + "d|");
}

}  // namespace
}  // namespace trainyard::data
