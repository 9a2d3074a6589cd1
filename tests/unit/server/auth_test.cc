#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "server/auth/authenticator.h"
#include "server/auth/token_file.h"
#include "storage/base/digest.h"
#include "storage/base/file.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

const char kToken[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

class AuthTest : public ::testing::Test {
 protected:
  AuthTest() {
    EXPECT_TRUE(stores_.tokens().AddToken(Sha256Hex(kToken), {"user:ann", "admin"}).ok());
    EXPECT_TRUE(stores_.tokens().AddToken(Sha256Hex("agents"), {"agent:n", "agent"}).ok());
  }
  absl::StatusCode Code(const std::string& authorization, Permission permission) {
    return authenticator_.Admit(authorization, permission).status().code();
  }

  FakeClock clock_;
  MemoryStores stores_{clock_};
  Authenticator authenticator_{stores_.tokens(), clock_};
};

TEST_F(AuthTest, KnownTokenGivesItsPrincipal) {
  const auto principal =
      authenticator_.Admit(std::string("Bearer ") + kToken, Permission::kWriteJobs);
  ASSERT_TRUE(principal.ok()) << principal.status();
  EXPECT_EQ(principal->name, "user:ann");
}

TEST_F(AuthTest, WithoutOrWithWrongCredentialsIsUnauthenticated) {
  const std::string long_token(5000, 'a');
  for (const std::string& bad :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string("Basic abc"),
        std::string(kToken), std::string("Bearer x"), "Bearer " + long_token}) {
    EXPECT_EQ(Code(bad, Permission::kReadJobs), absl::StatusCode::kUnauthenticated) << bad;
  }
  EXPECT_THAT(authenticator_.Admit("Bearer nope", Permission::kReadJobs).status().message(),
              ::testing::Not(HasSubstr("nope")));
}

TEST_F(AuthTest, RolesDecideWhatIsAllowed) {
  const std::string admin = std::string("bearer ") + kToken;
  EXPECT_EQ(Code(admin, Permission::kRunJobs), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Code("Bearer agents", Permission::kRunJobs), absl::StatusCode::kOk);
  for (Permission permission :
       {Permission::kReadJobs, Permission::kWriteJobs, Permission::kReadNodes,
        Permission::kWriteNodes, Permission::kAdmitNodes}) {
    EXPECT_EQ(Code(admin, permission), absl::StatusCode::kOk);
    EXPECT_EQ(Code("Bearer agents", permission), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_THAT(authenticator_.Admit("Bearer agents", Permission::kWriteJobs).status().message(),
              HasSubstr("agent:n (role agent) may not write jobs"));
}

TEST_F(AuthTest, RevokedTokenStopsWorkingWithinASecond) {
  const std::string admin = std::string("Bearer ") + kToken;
  ASSERT_EQ(Code(admin, Permission::kReadJobs), absl::StatusCode::kOk);
  ASSERT_TRUE(stores_.tokens().RevokeToken("", TokenIdOf(Sha256Hex(kToken))).ok());
  clock_.Advance(absl::Milliseconds(501));
  EXPECT_EQ(Code(admin, Permission::kReadJobs), absl::StatusCode::kUnauthenticated);
}

TEST_F(AuthTest, StoreThatIsAwayIsUnavailableAndNotAVerdict) {
  stores_.SetAway(true);
  EXPECT_EQ(Code(std::string("Bearer ") + kToken, Permission::kReadJobs),
            absl::StatusCode::kUnavailable);
}

class TokenFileTest : public AuthTest {
 protected:
  TokenFileTest() {
    char name[] = "/tmp/token_file_test_XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/token";
  }
  ~TokenFileTest() override {
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }
  std::string folder_, path_;
};

TEST_F(TokenFileTest, TokenOfAFileIsAccepted) {
  ASSERT_TRUE(WriteFileAtomically(path_, std::string(64, 'f') + "\n", 0600).ok());
  const auto file = ParseTokenFlag("agent:node-1:" + path_);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(AddTokenFile(*file, stores_.tokens()).ok());
  const auto principal =
      authenticator_.Admit("Bearer " + std::string(64, 'f'), Permission::kRunJobs);
  ASSERT_TRUE(principal.ok());
  EXPECT_EQ(principal->name, "agent:node-1");
}

TEST_F(TokenFileTest, FileThatOthersReadIsRefused) {
  ASSERT_TRUE(WriteFileAtomically(path_, std::string(64, 'f'), 0600).ok());
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  const absl::Status status = AddTokenFile(*ParseTokenFlag("admin:a:" + path_), stores_.tokens());
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("chmod 600"));
}

TEST_F(TokenFileTest, ShortTokensAndWrongFlagsAreRefused) {
  ASSERT_TRUE(WriteFileAtomically(path_, "short\n", 0600).ok());
  EXPECT_FALSE(AddTokenFile(*ParseTokenFlag("admin:a:" + path_), stores_.tokens()).ok());
  EXPECT_EQ(AddTokenFile(*ParseTokenFlag("admin:a:/nowhere/t"), stores_.tokens()).code(),
            absl::StatusCode::kNotFound);
  for (const char* bad : {"", "admin", "admin:a", "root:a:/t", "admin::/t", "admin:a:"}) {
    EXPECT_EQ(ParseTokenFlag(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace trainyard
