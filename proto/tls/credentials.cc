#include "proto/tls/credentials.h"

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_context.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr unsigned kSecondsBetweenLooks = 1;

// gRPC 1.51 cannot be told a least version. It reads the ciphers of TLS 1.2 from the environment;
// those of TLS 1.3 are separate. With pre-shared keys alone, which nobody has, TLS 1.2 has no
// cipher that both sides can use. Before main, when no other thread can read the environment.
const bool tls_1_2_is_refused =
    setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", /*overwrite=*/1) == 0;

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const TlsFiles& files, const std::string& caller_authorities) {
  const bool asks = !caller_authorities.empty();
  auto provider = asks ? std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
                             files.key, files.certificate, caller_authorities, kSecondsBetweenLooks)
                       : std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
                             files.key, files.certificate, kSecondsBetweenLooks);
  grpc::experimental::TlsServerCredentialsOptions options(std::move(provider));
  options.watch_identity_key_cert_pairs();
  if (asks) options.watch_root_certs();
  options.set_cert_request_type(asks ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                     : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return grpc::experimental::TlsServerCredentials(options);
}

std::string PeerCertificate(const grpc::ServerContextBase& context) {
  const auto shown = context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return shown.empty() ? "" : std::string(shown.front().data(), shown.front().size());
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::string& authorities, const std::optional<TlsIdentity>& own) {
  if (authorities.empty() && own.has_value()) {
    return absl::InvalidArgumentError(
        "no authority to know the server by, which is to be shown a "
        "certificate");
  }
  if (authorities.empty()) return grpc::InsecureChannelCredentials();
  const bool named = authorities != kSystemAuthorities;
  if (named) TY_RETURN_IF_ERROR(ReadCertificate(authorities, "the named authority").status());
  grpc::experimental::TlsChannelCredentialsOptions options;
  std::vector<grpc::experimental::IdentityKeyCertPair> pairs;
  if (own.has_value()) pairs.push_back({own->key, own->certificates});
  if (named || own.has_value()) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
            named ? authorities : "", pairs));
  }
  if (named) options.watch_root_certs();
  if (own.has_value()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace trainyard
