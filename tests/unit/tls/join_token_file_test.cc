#include "proto/tls/join_token_file.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/tls/certificate.h"

namespace trainyard {
namespace {

JoinTokenFile Whole() {
  return {.token = MakeJoinToken(),
          .authorities = MakeAuthority("yard", absl::Hours(1))->certificates};
}

TEST(JoinTokenFileTest, IsReadAsItWasWritten) {
  const JoinTokenFile file = Whole();
  const std::string text = JoinTokenFileText(file);
  const auto read = ParseJoinTokenFile(text, "it");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->token, file.token);
  EXPECT_EQ(read->authorities, file.authorities);
  EXPECT_NE(MakeJoinToken(), MakeJoinToken());
  // Mail and editors change the ends of lines.
  EXPECT_TRUE(ParseJoinTokenFile(absl::StrCat("# the new machine\r\n", text, "\n\n"), "it").ok());
}

TEST(JoinTokenFileTest, WhatIsNoneIsRefusedWithoutSayingTheToken) {
  const JoinTokenFile file = Whole();
  const std::string text = JoinTokenFileText(file);
  const std::string without_authority = text.substr(0, text.find("-----BEGIN CERTIFICATE"));
  for (const std::string& bad :
       {std::string(), file.token, file.authorities, without_authority,
        text.substr(text.find("-----END")), JoinTokenFileText({file.token + "0", file.authorities}),
        JoinTokenFileText({"", file.authorities}),
        JoinTokenFileText({std::string(64, 'X'), file.authorities})}) {
    const auto read = ParseJoinTokenFile(bad, "the file");
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << bad << read.status();
    EXPECT_TRUE(absl::StrContains(read.status().message(), "the file")) << read.status();
    EXPECT_FALSE(absl::StrContains(read.status().message(), file.token)) << read.status();
  }
}

}  // namespace
}  // namespace trainyard
