// A server that speaks TLS, and those that call it.

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <openssl/ssl.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/client.h"
#include "gtest/gtest.h"
#include "proto/tls/certificate.h"
#include "server/auth/shown_certificate.h"
#include "storage/base/digest.h"
#include "storage/base/file.h"
#include "storage/memory/memory_stores.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() : stores_(SystemClock()) {
    spdlog::set_level(spdlog::level::err);
    char folder[] = "/tmp/trainyard-tls-XXXXXX";
    folder_ = mkdtemp(folder);
    authority_ = MakeAuthority("the yard", absl::Hours(24)).value();
    Show(Issue({"127.0.0.1"}));
    EXPECT_TRUE(stores_.tokens().AddToken(Sha256Hex(kAdminToken), {"user:ann", "admin"}).ok());
    Start({file(), file()});
  }
  ~TlsTest() override { std::filesystem::remove_all(folder_); }

  std::string file() const { return folder_ + "/server.pem"; }

  void Start(const TlsFiles& tls) {
    server_.reset();
    ServerOptions options = Rig::FastOptions();
    options.tls = tls;
    auto server = Server::Start(stores_, SystemClock(), options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  TlsIdentity Issue(const std::vector<std::string>& hosts) {
    return IssueCertificate(
               authority_,
               {.name = "server", .hosts = hosts, .of_server = true, .valid_for = absl::Hours(1)})
        .value();
  }

  // Puts the certificate and the key where the server looks for them.
  void Show(const TlsIdentity& identity) {
    ASSERT_TRUE(
        WriteFileAtomically(file(), absl::StrCat(identity.key, identity.certificates), 0600).ok());
  }

  // One that is to succeed has patience: a handshake takes long on a busy machine.
  absl::Status CallWithPatience() { return Call(authority_.certificates, kPatience); }

  absl::Status Call(const std::string& authorities,
                    absl::Duration patience = absl::ZeroDuration()) {
    Client client({.server = absl::StrCat("127.0.0.1:", server_->port()),
                   .token = kAdminToken,
                   .authorities = authorities,
                   .patience = patience});
    v1::ListJobsRequest request;
    request.set_parent("projects/default");
    return client.ListJobs(request).status();
  }

  // The fingerprint of the certificate that the server shows to one that speaks no newer TLS than
  // `newest`; "" if the two agree on none.
  std::string Shown(int newest) {
    const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                               SSL_CTX_free);
    SSL_CTX_set_max_proto_version(context.get(), newest);
    const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(context.get()), SSL_free);
    const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(server_->port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return "";
    SSL_set_fd(ssl.get(), socket.get());
    const unsigned char h2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl.get(), h2, sizeof(h2));
    if (SSL_connect(ssl.get()) != 1) return "";
    const std::unique_ptr<X509, void (*)(X509*)> peer(SSL_get1_peer_certificate(ssl.get()),
                                                      X509_free);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    X509_digest(peer.get(), EVP_sha256(), digest, &size);
    return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
  }

  MemoryStores stores_;
  std::string folder_;
  TlsIdentity authority_;
  std::unique_ptr<Server> server_;
};

TEST_F(TlsTest, AnswersThoseWhoTrustItsAuthority) {
  EXPECT_EQ(CallWithPatience(), absl::OkStatus());
}

TEST_F(TlsTest, IsNotBelievedByThoseWhoTrustAnother) {
  const TlsIdentity other = MakeAuthority("the yard", absl::Hours(24)).value();
  const absl::Status status = Call(other.certificates);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "certificate verify failed")) << status;
  EXPECT_TRUE(absl::IsUnavailable(Call("system"))) << Call("system");
}

TEST_F(TlsTest, IsNotBelievedUnderAnotherName) {
  Show(Issue({"yard.example", "127.0.0.2"}));
  Start({file(), file()});
  const absl::Status status = Call(authority_.certificates);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "Hostname Verification")) << status;
}

TEST_F(TlsTest, DoesNotHearClearText) { EXPECT_TRUE(absl::IsUnavailable(Call(""))) << Call(""); }

TEST_F(TlsTest, AuthoritiesThatAreNoneFailEveryCall) {
  EXPECT_TRUE(absl::IsInvalidArgument(Call("no PEM"))) << Call("no PEM");
}

TEST_F(TlsTest, SpeaksTls13Alone) {
  EXPECT_NE(Shown(TLS1_3_VERSION), "");
  EXPECT_EQ(Shown(TLS1_2_VERSION), "");
}

TEST_F(TlsTest, ShowsANewCertificateWithoutARestart) {
  const TlsIdentity next = Issue({"127.0.0.1"});
  const std::string expected = ReadCertificate(next.certificates, "next")->fingerprint;
  EXPECT_NE(Shown(TLS1_3_VERSION), expected);
  Show(next);
  const absl::Time deadline = absl::Now() + kPatience;
  while (Shown(TLS1_3_VERSION) != expected) ASSERT_LT(absl::Now(), deadline);
  EXPECT_EQ(CallWithPatience(), absl::OkStatus());
}

TEST_F(TlsTest, KeepsItsCertificateWhileItsFileIsAway) {
  const std::string shown = Shown(TLS1_3_VERSION);
  std::filesystem::remove(file());
  // It looks once a second.
  const absl::Time end = absl::Now() + absl::Milliseconds(2500);
  while (absl::Now() < end) ASSERT_EQ(Shown(TLS1_3_VERSION), shown);
}

TEST_F(TlsTest, ShowsWhatLiesInMemoryAloneAndIsReplacedThere) {
  const auto shown =
      ShownCertificate::OfAuthority(authority_, {"127.0.0.1"}, absl::Now() - absl::Hours(1));
  ASSERT_TRUE(shown.ok()) << shown.status();
  Start((*shown)->files());
  EXPECT_EQ(CallWithPatience(), absl::OkStatus());
  const std::string first = Shown(TLS1_3_VERSION);
  // gRPC may be reading it at any moment of this.
  const absl::Time deadline = absl::Now() + kPatience;
  for (int day = 2; Shown(TLS1_3_VERSION) == first; ++day) {
    (*shown)->LookAgain(absl::Now() + absl::Hours(24 * 31 * day));
    ASSERT_LT(absl::Now(), deadline);
  }
  EXPECT_NE(Shown(TLS1_3_VERSION), "");
  EXPECT_EQ(CallWithPatience(), absl::OkStatus());
}

TEST_F(TlsTest, DoesNotStartWithACertificateThatItCannotShow) {
  ServerOptions options = Rig::FastOptions();
  options.tls = TlsFiles{file(), folder_ + "/none.pem"};
  const auto server = Server::Start(stores_, SystemClock(), options);
  EXPECT_TRUE(absl::IsNotFound(server.status())) << server.status();
}

}  // namespace
}  // namespace trainyard
