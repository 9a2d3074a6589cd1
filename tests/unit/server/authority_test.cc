#include "server/auth/authority.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/tls/pem_files.h"
#include "server/auth/sealed.h"
#include "server/auth/shown_certificate.h"
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

TEST_F(AuthorityTest, AFileThatIsNoKeyOrThatEverybodyReadsIsRefused) {
  const std::string path = folder_ + "/key";
  for (const std::string& text : {std::string(), std::string(63, 'a'), std::string(64, 'g')}) {
    ASSERT_TRUE(WriteFileAtomically(path, text, 0600).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(Open().status())) << Open().status();
  }
  ASSERT_TRUE(WriteFileAtomically(path, std::string(64, 'a'), 0644).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Open().status())) << Open().status();
  EXPECT_FALSE((*stores_.authority().FindAuthority()).has_value());
}

TEST_F(AuthorityTest, ServersThatBeginAtOnceHaveOneAuthority) {
  std::vector<std::thread> threads;
  std::vector<absl::StatusOr<TlsIdentity>> opened(8, absl::UnknownError(""));
  for (absl::StatusOr<TlsIdentity>& one : opened) threads.emplace_back([&] { one = Open(); });
  for (std::thread& thread : threads) thread.join();
  for (const absl::StatusOr<TlsIdentity>& one : opened) {
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(one->certificates, opened[0]->certificates);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "only the key";
}

// A store in which a server of another machine makes its authority first, at the last moment.
class Late final : public AuthorityStore {
 public:
  absl::StatusOr<std::optional<AuthorityRecord>> FindAuthority() override { return std::nullopt; }
  absl::StatusOr<AuthorityRecord> AddAuthority(const AuthorityRecord&) override {
    return AuthorityRecord{.certificate = "of another", .sealed_key = std::string(60, 'x')};
  }
};

TEST_F(AuthorityTest, WhoComesLateLeavesNoKeyThatOpensNothing) {
  Late store;
  const auto opened = OpenAuthority(store, folder_ + "/key");
  EXPECT_TRUE(absl::IsFailedPrecondition(opened.status())) << opened.status();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/key"));
}

TEST_F(AuthorityTest, IssuesAServerACertificateThatIsRenewedInTime) {
  const absl::Time now = absl::Now();
  const auto shown = ShownCertificate::OfAuthority(*Open(), {"yard.example", "10.0.0.7"}, now);
  ASSERT_TRUE(shown.ok()) << shown.status();
  const auto fingerprint = [&] { return CheckTlsFiles((*shown)->files(), now)->fingerprint; };
  EXPECT_THAT(CheckTlsFiles((*shown)->files(), now)->hosts,
              ::testing::ElementsAre("yard.example", "10.0.0.7"));
  const std::string first = fingerprint();
  (*shown)->LookAgain(now + absl::Hours(24 * 29));
  EXPECT_EQ(fingerprint(), first);
  (*shown)->LookAgain(now + absl::Hours(24 * 31));
  EXPECT_NE(fingerprint(), first);
  EXPECT_TRUE(
      absl::IsInvalidArgument(ShownCertificate::OfAuthority(*Open(), {"a b"}, now).status()));
}

TEST_F(AuthorityTest, FilesOfAnOperatorAreShownOnceTheyAreGood) {
  const absl::Time now = absl::Now();
  const TlsIdentity authority = *Open();
  const TlsFiles files{folder_ + "/certificate.pem", folder_ + "/key.pem"};
  const auto issue = [&](absl::Duration valid_for) {
    return *IssueCertificate(
        authority, {.name = "s", .hosts = {"h"}, .of_server = true, .valid_for = valid_for});
  };
  const auto write = [&](const std::string& certificates, const std::string& key) {
    ASSERT_TRUE(WriteFileAtomically(files.certificate, certificates).ok());
    ASSERT_TRUE(WriteFileAtomically(files.key, key, 0600).ok());
  };
  const TlsIdentity first = issue(absl::Hours(1)), second = issue(absl::Hours(1));
  write(first.certificates, first.key);
  const auto shown = ShownCertificate::OfFiles(files, now);
  ASSERT_TRUE(shown.ok()) << shown.status();
  const auto shows = [&](const TlsIdentity& identity) {
    (*shown)->LookAgain(now);
    return CheckTlsFiles((*shown)->files(), now)->fingerprint ==
           ReadCertificate(identity.certificates, "it")->fingerprint;
  };
  EXPECT_TRUE(shows(first));
  write(second.certificates, first.key);  // half replaced
  EXPECT_TRUE(shows(first));
  write("", "");
  EXPECT_TRUE(shows(first));
  std::filesystem::remove(files.key);
  EXPECT_TRUE(shows(first));
  const TlsIdentity over = issue(-absl::Hours(1));
  write(over.certificates, over.key);
  EXPECT_TRUE(shows(first));
  write(second.certificates, second.key);
  EXPECT_TRUE(shows(second));
}

}  // namespace
}  // namespace trainyard
