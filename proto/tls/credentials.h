#pragma once

// gRPC's credentials for links between Trainyard's programs: TLS 1.3 alone. A program that links
// this refuses TLS 1.2 on every connection that it accepts or makes.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/tls/pem_files.h"

namespace trainyard {

// Both files are looked at again every second: connections that are made after they were replaced
// get the new certificate, and those that stand are kept. While they do not belong together new
// connections are refused, so whoever replaces them does so at once (ShownCertificate).
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files);

// Clear text if `authorities` is empty. Else TLS: the server must show a certificate that one of
// these authorities (PEM text, or "system") vouches for, and that stands for the host by which it
// was called.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::string& authorities);

}  // namespace trainyard
