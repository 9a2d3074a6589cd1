#include "executor/weights/model_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace trainyard::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(ModelJson, TakesAnObject) {
  const auto json = ParseModelJson(R"({"a": {"b": [1, 2.5, null]}, "c": "x"})");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["a"]["b"][1], 2.5);
}

TEST(ModelJson, RefusesWhatIsHostileOrAmbiguous) {
  const std::pair<std::string, const char*> kTable[] = {
      {"", "not JSON at byte"},
      {"[1]", "no JSON object"},
      {"{\"a\": 1", "not JSON at byte"},
      {"{\"a\": 1e999}", "not JSON at byte"},
      {"{\"a\": \"\xff\"}", "not JSON at byte"},
      {R"({"a": {"b": 1, "c": 2, "b": 3}})", "key 'b' twice"},
      {"{\"a\":" + std::string(100000, '['), "more than 64 levels deep"},
      {absl::StrCat("{\"a\":", std::string(64, '['), std::string(64, ']'), "}"),
       "more than 64 levels deep"},
  };
  for (const auto& [text, message] : kTable) {
    const auto json = ParseModelJson(text);
    EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 80);
    EXPECT_THAT(std::string(json.status().message()), HasSubstr(message)) << text.substr(0, 80);
  }
  EXPECT_TRUE(
      ParseModelJson(absl::StrCat("{\"a\":", std::string(63, '['), std::string(63, ']'), "}"))
          .ok());
}

TEST(ShardIndex, NamesTheFileOfEachTensor) {
  const auto index = ParseShardIndex(
      R"({"metadata": {}, "weight_map": {"b": "2.safetensors", "a": "1.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(*index, ElementsAre(Pair("a", "1.safetensors"), Pair("b", "2.safetensors")));
}

TEST(ShardIndex, RefusesWhatLeavesTheFolder) {
  for (const char* name : {"../model.safetensors", "/etc/model.safetensors", "a/b.safetensors",
                           "..", "", ".hidden.safetensors", "model.bin", "a\\u0000.safetensors"}) {
    const auto index = ParseShardIndex(absl::StrCat(R"({"weight_map": {"w": ")", name, R"("}})"));
    EXPECT_THAT(std::string(index.status().message()), HasSubstr("in the same folder")) << name;
  }
  EXPECT_FALSE(ParseShardIndex(R"({"weight_map": {"w": 3}})").ok());
  EXPECT_FALSE(ParseShardIndex(R"({"weight_map": []})").ok());
  EXPECT_FALSE(ParseShardIndex("{}").ok());
  EXPECT_THAT(
      std::string(ParseShardIndex(R"({"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}})")
                      .status()
                      .message()),
      HasSubstr("key 'w' twice"));
}

TEST(ShardIndex, RefusesMoreFilesThanAnyModelHas) {
  nlohmann::json json;
  for (int i = 0; i < 513; ++i)
    json["weight_map"][absl::StrCat("w", i)] = absl::StrCat(i, ".safetensors");
  EXPECT_THAT(std::string(ParseShardIndex(json.dump()).status().message()),
              HasSubstr("more than 512 files"));
  json["weight_map"].erase("w0");
  EXPECT_TRUE(ParseShardIndex(json.dump()).ok());
}

}  // namespace
}  // namespace trainyard::weights
