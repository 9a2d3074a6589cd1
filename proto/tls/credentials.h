#pragma once

// gRPC's credentials for links between Trainyard's programs: TLS 1.3 alone. A program that links
// this refuses TLS 1.2 on every connection that it accepts or makes.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/tls/certificate.h"
#include "proto/tls/pem_files.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace trainyard {

// Both files are looked at again every second: connections that are made after they were replaced
// get the new certificate, and those that stand are kept. While they do not belong together new
// connections are refused, so whoever replaces them does so at once (ShownCertificate).
//
// Asks callers for a certificate, too, if there are `caller_authorities`, a PEM file. Without one a
// caller is let in, and the call's PeerCertificate is empty; one that none of these authorities
// vouches for, or that is not for clients, ends the connection.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const TlsFiles& files, const std::string& caller_authorities = "");

// The certificate that the caller has shown, as PEM text, and has the key to; "": none.
std::string PeerCertificate(const grpc::ServerContextBase& context);

// Clear text if `authorities` is empty. Else TLS: the server must show a certificate that one of
// these authorities (PEM text, or "system") vouches for, and that stands for the host by which it
// was called. The server is shown `own`, if that is given.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::string& authorities, const std::optional<TlsIdentity>& own = std::nullopt);

}  // namespace trainyard
