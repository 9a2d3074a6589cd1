#include "proto/tls/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <cstdlib>

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

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files) {
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key, files.certificate, kSecondsBetweenLooks));
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::string& authorities) {
  if (authorities.empty()) return grpc::InsecureChannelCredentials();
  const bool named = authorities != kSystemAuthorities;
  if (named) TY_RETURN_IF_ERROR(ReadCertificate(authorities, "the named authority").status());
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (named) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(authorities));
    options.watch_root_certs();
  }
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace trainyard
