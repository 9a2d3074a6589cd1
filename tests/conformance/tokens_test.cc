// Tokens that people make and revoke, on every store.

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Tokens : public StoreSuite {
 protected:
  TokenStore& tokens() { return backend_->stores().tokens(); }

  // `letter`, 64 times, is the digest.
  void Create(char letter, const Principal& principal, absl::Duration valid_for = absl::Hours(1)) {
    const auto made = tokens().CreateToken(
        std::string(64, letter), {.principal = principal, .creator = "user:ann"}, valid_for);
    ASSERT_OK(made.status());
    EXPECT_EQ(made->id, std::string(16, letter));
    EXPECT_EQ(made->creator, "user:ann");
    EXPECT_EQ(made->expire_time - made->create_time, valid_for);
  }
  absl::StatusCode Find(char letter) {
    return tokens().FindToken(std::string(64, letter)).status().code();
  }
  std::string Listed(const std::string& project, const std::string& after = "", int limit = 10) {
    std::string all;
    const auto listed = tokens().ListTokens(project, after, limit);
    EXPECT_OK(listed.status());
    for (const TokenRecord& token : *listed) all += token.id[0];
    return all;
  }
};

TEST_P(Tokens, AreOfTheirPrincipalUntilTheyEndOrAreRevoked) {
  Create('a', {"user:bob", "viewer", "red"}, absl::Seconds(30));
  Create('b', {"service:ci", "submitter", ""});
  const auto found = tokens().FindToken(std::string(64, 'a'));
  ASSERT_OK(found.status());
  EXPECT_EQ(found->name, "user:bob");
  EXPECT_EQ(found->role, "viewer");
  EXPECT_EQ(found->project, "red");
  backend_->Pass(absl::Seconds(31));
  EXPECT_EQ(Find('a'), absl::StatusCode::kNotFound);
  EXPECT_EQ(Find('b'), absl::StatusCode::kOk);
  const auto revoked = tokens().RevokeToken("", std::string(16, 'b'));
  ASSERT_OK(revoked.status());
  EXPECT_EQ(tokens().RevokeToken("", std::string(16, 'b'))->revoke_time, revoked->revoke_time);
  EXPECT_EQ(Find('b'), absl::StatusCode::kNotFound);
  EXPECT_EQ(tokens().RevokeToken("", "nobody").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(Tokens, OfAServerStayRevokedWhenItStartsAgain) {
  const std::string digest(64, 'a');
  ASSERT_OK(tokens().AddToken(digest, {"user:ann", "admin"}));
  EXPECT_EQ(Find('a'), absl::StatusCode::kOk);
  ASSERT_OK(tokens().RevokeToken("", std::string(16, 'a')).status());
  EXPECT_EQ(Find('a'), absl::StatusCode::kNotFound);
  ASSERT_OK(tokens().AddToken(digest, {"user:ann", "admin"}));
  EXPECT_EQ(Find('a'), absl::StatusCode::kNotFound);
  EXPECT_EQ(Listed(""), "a");
}

TEST_P(Tokens, AreListedByIdAndOfAProjectAlone) {
  Create('b', {"user:bob", "viewer", "red"});
  Create('d', {"user:bob", "viewer", "blue"});
  Create('a', {"user:bob", "viewer", ""});
  ASSERT_OK(tokens().AddToken(std::string(64, 'c'), {"user:ann", "admin"}));
  EXPECT_EQ(Listed(""), "abcd");
  EXPECT_EQ(Listed("", "", 2), "ab");
  EXPECT_EQ(Listed("", std::string(16, 'b'), 1), "c");
  EXPECT_EQ(Listed("red"), "b");
  EXPECT_EQ(Listed("green"), "");
  EXPECT_EQ(tokens().RevokeToken("red", std::string(16, 'd')).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(tokens().RevokeToken("red", std::string(16, 'c')).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_OK(tokens().RevokeToken("red", std::string(16, 'b')).status());
}

TEST_P(Tokens, ThatEndedAreToldApart) {
  Create('a', {"user:bob", "viewer", ""});
  Create('b', {"user:bob", "viewer", ""});
  ASSERT_OK(tokens().AddToken(std::string(64, 'c'), {"user:ann", "admin"}));
  ASSERT_OK(tokens().AddToken(std::string(64, 'd'), {"user:ann", "admin"}));
  const auto ended = [this] {
    std::vector<std::string> digests, ids;
    for (const char letter : {'a', 'b', 'c', 'd', 'e'}) digests.emplace_back(64, letter);
    const auto found = tokens().FindEnded(digests);
    EXPECT_OK(found.status());
    for (const std::string& digest : *found) ids.push_back(digest.substr(0, 1));
    return ids;
  };
  EXPECT_THAT(ended(), ElementsAre("e"));
  ASSERT_OK(tokens().RevokeToken("", std::string(16, 'b')).status());
  ASSERT_OK(tokens().RevokeToken("", std::string(16, 'd')).status());
  EXPECT_THAT(ended(), ElementsAre("b", "d", "e"));
  EXPECT_THAT(*tokens().FindEnded({}), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Stores, Tokens, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
