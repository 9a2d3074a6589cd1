#include "executor/agent/node_certificate.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "storage/base/file.h"

namespace trainyard {
namespace {

class NodeCertificateTest : public ::testing::Test {
 protected:
  NodeCertificateTest() {
    char folder[] = "/tmp/trainyard-node-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~NodeCertificateTest() override { std::filesystem::remove_all(folder_); }

  NodeCertificate its() const { return NodeCertificate(folder_); }

  // What the yard answers to the node's request.
  std::string Sign(absl::Duration valid_for = absl::Hours(24 * 30)) {
    const auto request = its().SigningRequest();
    EXPECT_TRUE(request.ok()) << request.status();
    return SignCertificate(authority_, *request,
                           {.name = "n", .of_client = true, .valid_for = valid_for})
        .value();
  }

  std::string folder_;
  const TlsIdentity authority_ = MakeAuthority("yard", absl::Hours(24 * 365)).value();
};

TEST_F(NodeCertificateTest, IsKeptForItsOwnerAloneWithTheKeyThatWasMadeOnce) {
  EXPECT_TRUE(absl::IsNotFound(its().Read(absl::Now()).status()));
  EXPECT_FALSE(its().exists());
  ASSERT_TRUE(its().Keep(Sign(), authority_.certificates).ok());
  EXPECT_TRUE(its().exists());
  const auto files = its().Read(absl::Now());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->authorities, authority_.certificates);
  EXPECT_FALSE(files->should_renew);
  for (const char* file : {"/node.key", "/node.pem", "/yard.pem"}) {
    struct stat info;
    ASSERT_EQ(stat((folder_ + file).c_str(), &info), 0) << file;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << file;
  }
  ASSERT_TRUE(its().Keep(Sign(), authority_.certificates).ok());
  EXPECT_EQ(its().Read(absl::Now())->own.key, files->own.key);
}

TEST_F(NodeCertificateTest, IsRenewedInItsSecondHalfAndOverAtItsEnd) {
  ASSERT_TRUE(its().Keep(Sign(), authority_.certificates).ok());
  const absl::Time now = absl::Now();
  EXPECT_FALSE(its().Read(now + absl::Hours(24 * 14))->should_renew);
  EXPECT_TRUE(its().Read(now + absl::Hours(24 * 16))->should_renew);
  const absl::Status over = its().Read(now + absl::Hours(24 * 31)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(over)) << over;
  EXPECT_TRUE(absl::StrContains(over.message(), "valid from")) << over;
  EXPECT_TRUE(absl::IsFailedPrecondition(its().Read(now - absl::Hours(48)).status()));
}

TEST_F(NodeCertificateTest, WhatIsNotForItsKeyIsNotKept) {
  const std::string good = Sign();
  ASSERT_TRUE(its().Keep(good, authority_.certificates).ok());
  const std::string other =
      IssueCertificate(authority_, {.name = "n", .of_client = true, .valid_for = absl::Hours(1)})
          ->certificates;
  for (const std::string& bad : {other, std::string("nonsense"), std::string()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(its().Keep(bad, authority_.certificates))) << bad;
  }
  EXPECT_EQ(its().Read(absl::Now())->own.certificates, good);
  // A key that was put in place of its own, or damaged: the file is named.
  for (const std::string& key : {*MakePrivateKey(), std::string("nonsense")}) {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/node.key", key, 0600).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(its().Read(absl::Now()).status()));
  }
  EXPECT_TRUE(absl::StrContains(its().SigningRequest().status().message(), "node.key"));
  // Without it the node is a new one, also when it asks for a certificate and gets none.
  std::filesystem::remove(folder_ + "/node.key");
  EXPECT_TRUE(absl::IsNotFound(its().Read(absl::Now()).status()));
  EXPECT_TRUE(its().SigningRequest().ok());
  EXPECT_TRUE(absl::IsNotFound(its().Read(absl::Now()).status()));
}

TEST_F(NodeCertificateTest, WithoutTheAuthorityItIsNotUsedAndTheFileIsNamed) {
  ASSERT_TRUE(its().Keep(Sign(), authority_.certificates).ok());
  for (const char* text : {"", "nonsense"}) {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/yard.pem", text, 0600).ok());
    const absl::Status status = its().Read(absl::Now()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "yard.pem")) << status;
  }
  std::filesystem::remove(folder_ + "/yard.pem");
  const absl::Status status = its().Read(absl::Now()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace trainyard
