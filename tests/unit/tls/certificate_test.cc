#include "proto/tls/certificate.h"

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TlsIdentity Authority(absl::Duration valid_for = absl::Hours(24)) {
  return MakeAuthority("yard", valid_for).value();
}

TEST(CertificateTest, SaysForWhomAndHowLongItIs) {
  const absl::Time before = absl::Now();
  const auto identity = IssueCertificate(
      Authority(), {.name = "server",
                    .hosts = {"yard.example", "*.yards.example", "10.0.0.7", "2001:db8::1"},
                    .of_server = true,
                    .valid_for = absl::Hours(2)});
  ASSERT_TRUE(identity.ok()) << identity.status();
  const auto facts = ReadCertificate(identity->certificates, "it");
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->subject, "server");
  EXPECT_THAT(facts->hosts,
              ElementsAre("yard.example", "*.yards.example", "10.0.0.7", "2001:db8:0:0:0:0:0:1"));
  EXPECT_FALSE(facts->is_authority);
  EXPECT_LT(facts->not_before, before - absl::Hours(23)) << "clocks differ";
  EXPECT_NEAR(absl::ToDoubleSeconds(facts->not_after - before), 7200, 60);
  EXPECT_EQ(facts->fingerprint.size(), 64u);
  EXPECT_TRUE(CheckKeyOfCertificate(*identity).ok());
}

TEST(CertificateTest, AnAuthorityIsOneAndItsCertificateComesAfterThatWhichItSigned) {
  const TlsIdentity authority = Authority();
  const auto facts = ReadCertificate(authority.certificates, "it");
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_TRUE(facts->is_authority);
  EXPECT_THAT(facts->hosts, IsEmpty());
  const auto identity =
      IssueCertificate(authority, {.name = "n", .of_client = true, .valid_for = absl::Hours(1)});
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_TRUE(absl::EndsWith(identity->certificates, authority.certificates));
  EXPECT_NE(ReadCertificate(identity->certificates, "it")->fingerprint, facts->fingerprint);
}

TEST(CertificateTest, EndsNoLaterThanItsAuthority) {
  const TlsIdentity authority = Authority(absl::Hours(1));
  const auto identity = IssueCertificate(
      authority, {.name = "n", .of_client = true, .valid_for = absl::Hours(24 * 365)});
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(ReadCertificate(identity->certificates, "it")->not_after,
            ReadCertificate(authority.certificates, "it")->not_after);
}

TEST(CertificateTest, AHostThatIsNoneComesIntoNoCertificate) {
  for (const char* host : {"", "a,DNS:evil.example", "a b", "DNS:a", "300.0.0.1:7", "300.0.0.1",
                           "*", "*.", "a.*.b", "a\n", "é"}) {
    const auto identity = IssueCertificate(
        Authority(),
        {.name = "n", .hosts = {host}, .of_server = true, .valid_for = absl::Hours(1)});
    EXPECT_TRUE(absl::IsInvalidArgument(identity.status())) << host << ": " << identity.status();
  }
  for (const std::string& name : {std::string(), std::string(65, 'x')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(MakeAuthority(name, absl::Hours(1)).status()));
  }
}

TEST(CertificateTest, OneThatMightBeUsedForAnythingIsRefused) {
  const auto identity = IssueCertificate(Authority(), {.name = "n", .valid_for = absl::Hours(1)});
  EXPECT_TRUE(absl::IsInvalidArgument(identity.status())) << identity.status();
}

TEST(CertificateTest, AllCertificatesInATextAreTakenAndNothingElse) {
  const TlsIdentity one = Authority(), two = Authority();
  const auto all =
      CertificatesIn(one.key + one.certificates + "words\n" + two.certificates + two.key, "it");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(*all, one.certificates + two.certificates);
  const std::string broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  EXPECT_TRUE(absl::IsInvalidArgument(CertificatesIn(one.key, "it").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CertificatesIn(one.certificates + broken, "it").status()));
}

TEST(CertificateTest, TheKeyOfAnotherIsRefused) {
  const TlsIdentity mine = Authority(), other = Authority();
  EXPECT_TRUE(absl::IsInvalidArgument(CheckKeyOfCertificate({mine.certificates, other.key})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckKeyOfCertificate({mine.certificates, "no key"})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckKeyOfCertificate({"no certificate", mine.key})));
}

TEST(CertificateTest, WhatIsNoCertificateIsNamed) {
  for (const std::string& text :
       {std::string(),
        std::string("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        Authority().key, std::string(100000, 'x')}) {
    const absl::Status status = ReadCertificate(text, "/etc/ca.pem").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "/etc/ca.pem")) << status;
  }
}

}  // namespace
}  // namespace trainyard
