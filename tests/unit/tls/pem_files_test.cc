#include "proto/tls/pem_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "storage/base/file.h"

namespace trainyard {
namespace {

class PemFilesTest : public ::testing::Test {
 protected:
  PemFilesTest() {
    char folder[] = "/tmp/trainyard-pem-XXXXXX";
    folder_ = mkdtemp(folder);
    authority_ = MakeAuthority("yard", absl::Hours(24)).value();
    Write(Issue());
  }
  ~PemFilesTest() override { std::filesystem::remove_all(folder_); }

  TlsIdentity Issue() {
    return IssueCertificate(
               authority_,
               {.name = "s", .hosts = {"h"}, .of_server = true, .valid_for = absl::Hours(1)})
        .value();
  }
  void Write(const TlsIdentity& identity) {
    ASSERT_TRUE(WriteFileAtomically(files_().certificate, identity.certificates).ok());
    ASSERT_TRUE(WriteFileAtomically(files_().key, identity.key, 0640).ok());
  }
  TlsFiles files_() const { return {folder_ + "/certificate.pem", folder_ + "/key.pem"}; }
  absl::Status Check(absl::Time now = absl::Now()) { return CheckTlsFiles(files_(), now).status(); }

  std::string folder_;
  TlsIdentity authority_;
};

TEST_F(PemFilesTest, TellsWhatTheCertificateSays) {
  const auto facts = CheckTlsFiles(files_(), absl::Now());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->subject, "s");
}

TEST_F(PemFilesTest, BothMayLieInOneFile) {
  const TlsIdentity identity = Issue();
  const std::string path = folder_ + "/both.pem";
  ASSERT_TRUE(WriteFileAtomically(path, identity.key + identity.certificates, 0600).ok());
  EXPECT_TRUE(CheckTlsFiles({path, path}, absl::Now()).ok());
}

TEST_F(PemFilesTest, AKeyThatEverybodyMayReadIsRefused) {
  ASSERT_EQ(chmod(files_().key.c_str(), 0644), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(Check())) << Check();
  EXPECT_TRUE(absl::StrContains(Check().message(), "chmod o= ")) << Check();
}

TEST_F(PemFilesTest, ACertificateIsRefusedBeforeAndAfterItsTime) {
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(absl::Now() + absl::Hours(2))));
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(absl::Now() - absl::Hours(48))));
}

TEST_F(PemFilesTest, FilesThatDoNotBelongTogetherAreBothNamed) {
  const TlsIdentity other = Issue();
  ASSERT_TRUE(WriteFileAtomically(files_().key, other.key, 0600).ok());
  const absl::Status status = Check();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "key.pem beside ")) << status;
}

TEST_F(PemFilesTest, AFileThatIsMissingIsNamed) {
  std::filesystem::remove(files_().key);
  EXPECT_TRUE(absl::IsNotFound(Check())) << Check();
  EXPECT_TRUE(absl::StrContains(Check().message(), files_().key)) << Check();
}

TEST_F(PemFilesTest, AuthoritiesAreReadAndThoseOfTheMachineAreAWord) {
  EXPECT_EQ(ReadAuthorities("system").value(), "system");
  EXPECT_TRUE(ReadAuthorities(files_().certificate).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ReadAuthorities(files_().key).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadAuthorities(folder_ + "/none").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadAuthorities("").status()));
}

TEST_F(PemFilesTest, OfAuthoritiesNoKeyIsTakenOverAndNotTooMany) {
  const std::string path = folder_ + "/both.pem";
  ASSERT_TRUE(WriteFileAtomically(path, authority_.key + authority_.certificates).ok());
  EXPECT_EQ(ReadAuthorities(path).value(), authority_.certificates);
  std::string many;
  for (int i = 0; i < 100; ++i) many += authority_.certificates;
  ASSERT_TRUE(WriteFileAtomically(path, many).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ReadAuthorities(path).status()));
}

TEST_F(PemFilesTest, InMemoryItIsReplacedAtItsPath) {
  PemInMemory memory;
  ASSERT_TRUE(memory.Write("first").ok());
  const std::string path = memory.path();
  EXPECT_EQ(ReadFile(path).value(), "first");
  ASSERT_TRUE(memory.Write("second").ok());
  EXPECT_EQ(memory.path(), path);
  EXPECT_EQ(ReadFile(path).value(), "second");
}

}  // namespace
}  // namespace trainyard
