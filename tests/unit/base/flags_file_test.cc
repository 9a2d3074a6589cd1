#include "storage/base/flags_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FlagsFileTest : public ::testing::Test {
 protected:
  void SetUp() override { path_ = ::testing::TempDir() + "flags.yaml"; }
  absl::StatusOr<std::vector<std::string>> With(const std::string& file,
                                                std::vector<std::string> arguments) {
    std::ofstream(path_) << file;
    return WithFlagsOfFile(std::move(arguments), {"listen", "token-file", "insecure", "database"});
  }
  std::string Refusal(const std::string& file) {
    return std::string(With(file, {"--config", path_}).status().message());
  }
  std::string path_;
};

TEST_F(FlagsFileTest, AreInFrontOfThoseOfTheCommandLineAndGiveWayToThem) {
  const auto flags = With(
      "# a comment\n"
      "listen: 0.0.0.0:7070\n"
      "token-file: [admin:ann:/a, 'admin:bob:/b']\n"
      "insecure: true\n"
      "database: host=db password='x y'\n",
      {"--config=" + path_, "--listen", "127.0.0.1:1", "migrate"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(*flags, ElementsAre("--token-file=admin:ann:/a", "--token-file=admin:bob:/b",
                                  "--insecure=true", "--database=host=db password='x y'",
                                  "--listen", "127.0.0.1:1", "migrate"));
}

TEST_F(FlagsFileTest, WithoutAFileNothingChanges) {
  EXPECT_THAT(*WithFlagsOfFile({"--listen", "x"}, {}), ElementsAre("--listen", "x"));
  EXPECT_THAT(*With("", {"--config", path_, "x"}), ElementsAre("x"));
  EXPECT_THAT(*With("insecure: false\nlisten: ''\ndatabase: x", {"--config", path_}),
              ElementsAre("--insecure=false", "--listen", "", "--database=x"));
}

TEST_F(FlagsFileTest, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_EQ(Refusal("listen: a\nlissten: b"),
            absl::StrCat(path_, ":2: there is no flag 'lissten' (did you mean 'listen'?)"));
  EXPECT_THAT(Refusal("listen: {a: b}"), HasSubstr(":1: --listen: expected a value, or a list"));
  EXPECT_THAT(Refusal("listen: [[a]]"), HasSubstr(":1: --listen: expected values"));
  EXPECT_THAT(Refusal("- a"), HasSubstr("expected a mapping of flags"));
  EXPECT_THAT(Refusal("a: 'b"), HasSubstr("flags.yaml:"));
  EXPECT_THAT(Refusal("? [a]\n: b"), HasSubstr("there is no flag ''"));
  EXPECT_EQ(With("", {"--config"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WithFlagsOfFile({"--config", "/nowhere"}, {}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace trainyard
