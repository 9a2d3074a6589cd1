// tokenizer.json, good and hostile.

#include "executor/data/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "executor/data/tokenizer/bpe_trainer.h"

namespace trainyard::data {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Bytes, "ab" (256) and " ab" (257).
Json Small() { return Json::parse(BpeToJson(TrainBpe("ab ab ab abc", 300).value())); }

absl::StatusOr<std::unique_ptr<const Bpe>> Read(const Json& json) {
  return BpeFromJson(json.dump());
}

TEST(TokenizerJson, ComesBackAsTheSameModel) {
  const std::string text =
      BpeToJson(TrainBpe("ab ab ab abc \xE4\xB8\xAD\xE4\xB8\xAD", 300).value());
  const auto bpe = BpeFromJson(text);
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_EQ(BpeToJson((*bpe)->model()), text);
  EXPECT_EQ((*bpe)->Files()[0].name, "tokenizer.json");
  EXPECT_EQ((*bpe)->Files()[0].text, text);
  EXPECT_THAT(*(*bpe)->Encode("ab abc"), ElementsAre(256, 257, 66));
}

TEST(TokenizerJson, TakesMergesAsTextsAndAsPairs) {
  Json json = Small();
  json["model"]["merges"] = {"a b", "\xC4\xA0 ab"};
  EXPECT_THAT(*(*Read(json))->Encode("ab abc"), ElementsAre(256, 257, 66));
  json["model"]["merges"] = {"#version: 0.2", "a b"};  // as merges.txt begins
  EXPECT_THAT(*(*Read(json))->Encode(" ab"), ElementsAre(220, 256));
}

TEST(TokenizerJson, TakesAddedTokensInAndAfterTheVocabulary) {
  Json json = Small();
  json["added_tokens"] = {
      {{"id", 256}, {"content", "ab"}, {"special", false}, {"normalized", false}},
      {{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}}};
  const auto bpe = Read(json);
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_EQ((*bpe)->size(), 259);
  EXPECT_THAT(*(*bpe)->Encode(" ab<|endoftext|>ab"), ElementsAre(220, 256, 258, 256));
  EXPECT_EQ((*bpe)->Decode({258, 64}), "<|endoftext|>a");
}

TEST(TokenizerJson, TakesItsPartsInAnyOrder) {
  const Json small = Small();
  nlohmann::ordered_json json;
  for (const char* name : {"type", "vocab", "merges"}) json["model"][name] = small["model"][name];
  json["added_tokens"] = {{{"id", 258}, {"content", "<|endoftext|>"}, {"normalized", false}}};
  json["pre_tokenizer"] = small["pre_tokenizer"];
  const auto bpe = BpeFromJson(json.dump());
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_THAT(*(*bpe)->Encode("ab<|endoftext|>"), ElementsAre(256, 258));
}

TEST(TokenizerJson, RefusesBracketsInBracketsBeforeItParsesThem) {
  for (const char* bracket : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 65; ++i) deep += bracket;
    EXPECT_THAT(std::string(BpeFromJson(deep).status().message()),
                HasSubstr("more than 64 brackets in each other"));
  }
  Json json = Small();
  json["model"]["merges"] = {"a b", std::string(100, '['), "\\\" ["};  // in texts they are none
  EXPECT_THAT(std::string(Read(json).status().message()), HasSubstr("model.merges[1]"));
}

TEST(TokenizerJson, TakesLlama3sCutAndItsWholeWords) {
  Json json = Small();
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["abc"] = 258;  // no merge makes it
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", kLlama3Regex}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", false}}}}};
  json["post_processor"] = {{"type", "TemplateProcessing"}};
  const auto bpe = Read(json);
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_EQ((*bpe)->model().pattern, WordPattern::kLlama3);
  EXPECT_THAT(*(*bpe)->Encode("abc abc"), ElementsAre(258, 257, 66));
  json["model"]["ignore_merges"] = false;
  EXPECT_THAT(*(*Read(json))->Encode("abc"), ElementsAre(256, 66));
}

TEST(TokenizerJson, TakesTextAsOneWordWithoutARegex) {
  Json json = Small();
  json["pre_tokenizer"]["use_regex"] = false;
  json["model"]["vocab"]["b\xC4\xA0"] = 258;
  json["model"]["merges"] = {"b \xC4\xA0"};
  EXPECT_THAT(*(*Read(json))->Encode("b b"), ElementsAre(258, 65));
}

TEST(TokenizerJson, TakesFilesFromBeforeModelsHadATypeAndUnusedUnknownTokens) {
  Json json = Small();
  json["model"].erase("type");
  json["model"]["unk_token"] = "";
  json["model"]["continuing_subword_prefix"] = "";
  json["model"]["end_of_word_suffix"] = "";
  json["pre_tokenizer"].erase("use_regex");
  json["decoder"] = nullptr;
  EXPECT_TRUE(Read(json).ok());
}

struct Refusal {
  const char* message;
  std::function<void(Json&)> break_it;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

constexpr absl::StatusCode kUnbuilt = absl::StatusCode::kUnimplemented;

const Refusal kRefusals[] = {
    {"the file: found an array of 0, expected an object", [](Json& j) { j = Json::array(); }},
    {"normalizer: found 'NFC', expected null; only byte-level BPE is read",
     [](Json& j) {
       j["normalizer"] = {{"type", "NFC"}};
     },
     kUnbuilt},
    {"padding: found an object, expected null", [](Json& j) { j["padding"] = Json::object(); },
     kUnbuilt},
    {"truncation: found 7, expected null", [](Json& j) { j["truncation"] = 7; }, kUnbuilt},
    {"decoder: found 'WordPiece', expected ByteLevel or null",
     [](Json& j) {
       j["decoder"] = {{"type", "WordPiece"}};
     },
     kUnbuilt},
    {"pre_tokenizer: found null, expected ByteLevel", [](Json& j) { j.erase("pre_tokenizer"); },
     kUnbuilt},
    {"pre_tokenizer: found 'Metaspace', expected ByteLevel",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}};
     },
     kUnbuilt},
    {"pre_tokenizer.use_regex: found \"yes\", expected true or false",
     [](Json& j) { j["pre_tokenizer"]["use_regex"] = "yes"; }},
    {"pre_tokenizer.pretokenizers: found an array of 0, expected a Split and a ByteLevel",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array()}};
     },
     kUnbuilt},
    {"pre_tokenizer.pretokenizers[0].pattern: found \"\\\\s+\", expected {\"Regex\": …} with the "
     "expression of GPT-2 or of Llama 3",
     [](Json& j) {
       const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "\\s+"}}}};
       j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, j["pre_tokenizer"]}}};
     },
     kUnbuilt},
    {"model: found null, expected an object", [](Json& j) { j.erase("model"); }},
    {"model.type: found \"WordPiece\", expected \"BPE\"",
     [](Json& j) { j["model"]["type"] = "WordPiece"; }, kUnbuilt},
    {"model.dropout: found 0.1, expected null", [](Json& j) { j["model"]["dropout"] = 0.1; },
     kUnbuilt},
    {"model.end_of_word_suffix: found \"</w>\", expected null",
     [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, kUnbuilt},
    {"model.byte_fallback: found true, expected false",
     [](Json& j) { j["model"]["byte_fallback"] = true; }, kUnbuilt},
    {"model.vocab: found 1, expected an object", [](Json& j) { j["model"]["vocab"] = 1; }},
    {"model.vocab['!']: found \"0\", expected an id in [0, 1048576)",
     [](Json& j) { j["model"]["vocab"]["!"] = "0"; }},
    {"model.vocab['!']: found -1, expected an id", [](Json& j) { j["model"]["vocab"]["!"] = -1; }},
    {"model.vocab['!']: found 1.5, expected an id",
     [](Json& j) { j["model"]["vocab"]["!"] = 1.5; }},
    {"model.vocab['!']: found 4294967296, expected an id in [0, 1048576)",
     [](Json& j) { j["model"]["vocab"]["!"] = uint64_t{1} << 32; }},
    {"ab']: found 257, expected an id that no other token has",
     [](Json& j) { j["model"]["vocab"]["ab"] = 257; }},
    {"model.vocab: found no token of id 258, expected one for each id in [0, 260)",
     [](Json& j) { j["model"]["vocab"]["zz"] = 259; }},
    {"model.vocab['']: found an empty token", [](Json& j) { j["model"]["vocab"][""] = 258; }},
    {"model.vocab: found no token '!' for the byte 33, expected a token for each of the 256 bytes",
     [](Json& j) {
       j["model"]["vocab"].erase("!");
       j["model"]["vocab"]["!!"] = 0;
     }},
    {"model.merges: found null, expected an array", [](Json& j) { j["model"].erase("merges"); }},
    {"model.merges[0]: found 3, expected \"left right\" or [\"left\", \"right\"]",
     [](Json& j) { j["model"]["merges"] = {3}; }},
    {"model.merges[0]: found \"a b c\", expected",
     [](Json& j) { j["model"]["merges"] = {"a b c"}; }},
    {"model.merges[0]: found an array of 3, expected",
     [](Json& j) {
       j["model"]["merges"] = {{"a", "b", "c"}};
     }},
    {"model.merges[0]: found 'zz', which is not in model.vocab, expected tokens",
     [](Json& j) { j["model"]["merges"] = {"zz b"}; }},
    {"model.merges[0]: found 'ba', which is not in model.vocab, expected tokens",
     [](Json& j) { j["model"]["merges"] = {"b a"}; }},
    {"model.merges[0]: found '', which is not in model.vocab",
     [](Json& j) { j["model"]["merges"] = {" a"}; }},
    {"model.merges[1]: found the pair of model.merges[0], expected each pair once",
     [](Json& j) {
       j["model"]["merges"] = {"a b", "a b"};
     }},
    {"added_tokens: found 3, expected an array", [](Json& j) { j["added_tokens"] = 3; }},
    {"added_tokens[0].content: found null, expected a text",
     [](Json& j) { j["added_tokens"] = {nullptr}; }},
    {"added_tokens[0].content: found \"\", expected a text",
     [](Json& j) {
       j["added_tokens"] = {{{"content", ""}, {"id", 258}}};
     }},
    {"added_tokens[0].content: found a text of 129 bytes, expected at most 128",
     [](Json& j) {
       j["added_tokens"] = {{{"content", std::string(129, 'a')}, {"id", 258}}};
     }},
    {"added_tokens: found 65537 tokens, expected at most 65536",
     [](Json& j) { j["added_tokens"] = std::vector<int>(65537); }},
    {"added_tokens[0].id: found null, expected an id",
     [](Json& j) {
       j["added_tokens"] = {{{"content", "<a>"}}};
     }},
    {"added_tokens[0].id: found 5, expected an id that no other token has",
     [](Json& j) {
       j["added_tokens"] = {{{"content", "<a>"}, {"id", 5}}};
     }},
    {"added_tokens[0].id: found 7, expected 256, as in model.vocab",
     [](Json& j) {
       j["added_tokens"] = {{{"content", "ab"}, {"id", 7}}};
     }},
    {"added_tokens[1].content: found \"ab\" again, expected each token once",
     [](Json& j) {
       const Json ab = {{"content", "ab"}, {"id", 256}};
       j["added_tokens"] = {ab, ab};
     }},
    {"added_tokens[0].lstrip: found true, expected false",
     [](Json& j) {
       j["added_tokens"] = {{{"content", "ab"}, {"id", 256}, {"lstrip", true}}};
     },
     kUnbuilt},
};

TEST(TokenizerJson, RefusesWhatItCannotDoOrWhatMakesNoSense) {
  for (const Refusal& refusal : kRefusals) {
    Json json = Small();
    refusal.break_it(json);
    const auto bpe = Read(json);
    EXPECT_EQ(bpe.status().code(), refusal.code) << refusal.message << "\n" << bpe.status();
    EXPECT_THAT(std::string(bpe.status().message()), HasSubstr(refusal.message));
  }
}

TEST(TokenizerJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,", "{\"model\": \xff}", "nul", "{} {}"}) {
    EXPECT_EQ(BpeFromJson(text).status().message(), "found no JSON") << text;
  }
  EXPECT_FALSE(BpeFromJson(std::string(1 << 20, '[')).ok());
  std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  EXPECT_FALSE(BpeFromJson("{\"normalizer\": " + deep + "}").ok());
}

TEST(TokenizerJson, ShortensWhatItShows) {
  Json json = Small();
  json["normalizer"] = std::string(10000, 'x');
  EXPECT_LT(Read(json).status().message().size(), 200u);
  json = Small();
  json["model"]["vocab"][std::string(10000, 'x')] = -1;
  EXPECT_LT(Read(json).status().message().size(), 200u);
}

TEST(TokenizerJson, NamesItselfWhenACheckpointsIsDamaged) {
  EXPECT_EQ(ReadTokenizer({.name = kTokenizerFile, .text = "{"}).status().message(),
            "tokenizer.json: found no JSON");
  EXPECT_THAT(std::string(ReadTokenizer({.name = kVocabularyFile, .text = "{"}).status().message()),
              HasSubstr("vocabulary.json: "));
}

}  // namespace
}  // namespace trainyard::data
