#include "proto/tls/certificate.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

const CertificateRequest kOfNode = {
    .name = "node-1", .of_client = true, .valid_for = absl::Hours(1)};

TEST(SigningRequestTest, WhoHasTheKeyGetsACertificateForItThatSaysWhatTheAuthorityDecides) {
  const TlsIdentity authority = Authority();
  const std::string key = MakePrivateKey().value();
  const std::string asked = MakeSigningRequest(key).value();
  const auto signed_for = SignCertificate(authority, asked, kOfNode);
  ASSERT_TRUE(signed_for.ok()) << signed_for.status();
  EXPECT_TRUE(absl::EndsWith(*signed_for, authority.certificates));
  EXPECT_TRUE(CheckKeyOfCertificate({*signed_for, key}).ok());
  const auto facts = ReadCertificate(*signed_for, "it");
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->subject, "node-1");
  EXPECT_FALSE(facts->is_authority);
  EXPECT_EQ(facts->key_fingerprint, *KeyOfSigningRequest(asked));
  // It stays when the certificate is renewed, and is another one for each key.
  const std::string again = SignCertificate(authority, *MakeSigningRequest(key), kOfNode).value();
  EXPECT_EQ(ReadCertificate(again, "it")->key_fingerprint, facts->key_fingerprint);
  EXPECT_NE(ReadCertificate(again, "it")->fingerprint, facts->fingerprint);
  EXPECT_NE(*KeyOfSigningRequest(*MakeSigningRequest(*MakePrivateKey())), facts->key_fingerprint);
}

TEST(SigningRequestTest, WhatIsNoneOrWasChangedIsRefused) {
  const std::string asked = MakeSigningRequest(MakePrivateKey().value()).value();
  std::string changed = asked;  // one bit of the signature, which comes last
  char& letter = changed[changed.find("\n-----END") - 8];
  letter = letter == 'A' ? 'B' : 'A';
  for (const std::string& bad : {std::string(), std::string("nonsense"), changed,
                                 asked.substr(0, asked.size() / 2), Authority().certificates}) {
    EXPECT_TRUE(absl::IsInvalidArgument(KeyOfSigningRequest(bad).status())) << bad;
    const auto signed_for = SignCertificate(Authority(), bad, kOfNode);
    EXPECT_TRUE(absl::IsInvalidArgument(signed_for.status())) << signed_for.status();
  }
}

// By `openssl req -new -newkey …`: other kinds of keys than ours.
TEST(SigningRequestTest, OtherKindsOfKeysAreRefused) {
  for (const char* kind : {"rsa:2048", "ed25519", "ec -pkeyopt ec_paramgen_curve:P-384"}) {
    const std::string command = absl::StrCat(
        "openssl req -new -nodes -subj /CN=n -keyout /dev/null "
        "-newkey ",
        kind, " 2>/dev/null");
    std::string pem;
    FILE* const out = popen(command.c_str(), "r");
    ASSERT_NE(out, nullptr);
    for (int c = fgetc(out); c != EOF; c = fgetc(out)) pem += static_cast<char>(c);
    ASSERT_EQ(pclose(out), 0) << kind;
    const auto key = KeyOfSigningRequest(pem);
    EXPECT_TRUE(absl::IsInvalidArgument(key.status())) << kind << key.status();
    EXPECT_TRUE(absl::StrContains(key.status().message(), "P-256")) << key.status();
  }
}

}  // namespace
}  // namespace trainyard
