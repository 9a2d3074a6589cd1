#include "server/auth/authority.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/tls/pem_files.h"
#include "server/auth/sealed.h"
#include "storage/base/file.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {
namespace {

TEST(SealedTest, OpensWithItsKeyAndForWhatItIsOnly) {
  const std::string key = MakeSealKey(), other = MakeSealKey();
  for (const std::string& text : {std::string("secret"), std::string(), std::string(5000, '\0')}) {
    std::string sealed = Seal(key, text, "this").value();
    EXPECT_EQ(Unseal(key, sealed, "this").value(), text);
    EXPECT_NE(Seal(key, text, "this").value(), sealed) << "a nonce of its own";
    EXPECT_TRUE(absl::IsDataLoss(Unseal(other, sealed, "this").status()));
    EXPECT_TRUE(absl::IsDataLoss(Unseal(key, sealed, "that").status()));
    for (const size_t at : {size_t{0}, sealed.size() / 2, sealed.size() - 1}) {
      std::string changed = sealed;
      changed[at] ^= 1;
      EXPECT_TRUE(absl::IsDataLoss(Unseal(key, changed, "this").status())) << at;
    }
    sealed.resize(20);
    EXPECT_TRUE(absl::IsDataLoss(Unseal(key, sealed, "this").status()));
  }
}

class AuthorityTest : public ::testing::Test {
 protected:
  AuthorityTest() : stores_(SystemClock()) {
    char folder[] = "/tmp/trainyard-authority-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~AuthorityTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<TlsIdentity> Open(const std::string& file = "key") {
    return OpenAuthority(stores_.authority(), folder_ + "/" + file);
  }

  MemoryStores stores_;
  std::string folder_;
};

TEST_F(AuthorityTest, TheFirstServerMakesItAndTheOthersOpenIt) {
  const auto first = Open();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(ReadCertificate(first->certificates, "it")->is_authority);
  struct stat info;
  ASSERT_EQ(stat((folder_ + "/key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  const auto second = Open();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->certificates, first->certificates);
  EXPECT_EQ(second->key, first->key);
  const auto stored = stores_.authority().FindAuthority();
  EXPECT_FALSE(absl::StrContains((*stored)->sealed_key, "PRIVATE KEY"));
}

TEST_F(AuthorityTest, AKeyMadeBeforeServesTheFirstServer) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/key", std::string(64, 'a') + "\n", 0600).ok());
  EXPECT_TRUE(Open().ok()) << Open().status();
}

TEST_F(AuthorityTest, WithoutItsKeyItIsNotOpened) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Open("other").status())) << Open("other").status();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/other")) << "no key is made that opens nothing";
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/other", std::string(64, 'a'), 0600).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Open("other").status())) << Open("other").status();
}

TEST_F(AuthorityTest, AFileThatIsNoKeyOrThatOthersReadIsRefused) {
  const std::string path = folder_ + "/key";
  for (const std::string& text : {std::string(), std::string(63, 'a'), std::string(64, 'g')}) {
    ASSERT_TRUE(WriteFileAtomically(path, text, 0600).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(Open().status())) << Open().status();
  }
  ASSERT_TRUE(WriteFileAtomically(path, std::string(64, 'a'), 0640).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Open().status())) << Open().status();
}

TEST_F(AuthorityTest, IssuesAServerACertificateThatIsRenewedInItsPlace) {
  const auto authority = Open();
  auto own = OwnCertificate::Issue(*authority, {"yard.example", "10.0.0.7"});
  ASSERT_TRUE(own.ok()) << own.status();
  const TlsFiles files{own->path(), own->path()};
  const auto before = CheckTlsFiles(files, absl::Now());
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_THAT(before->hosts, ::testing::ElementsAre("yard.example", "10.0.0.7"));
  ASSERT_TRUE(own->Renew().ok());
  const auto after = CheckTlsFiles(files, absl::Now());
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NE(after->fingerprint, before->fingerprint);
  EXPECT_TRUE(absl::IsInvalidArgument(OwnCertificate::Issue(*authority, {"a b"}).status()));
}

}  // namespace
}  // namespace trainyard
