#pragma once

// The PEM files that servers, agents and clients are pointed to.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/certificate.h"

namespace trainyard {

// A server's certificate and key, each in a PEM file. The first also holds the certificates of
// those authorities that clients do not know, after its own.
struct TlsFiles {
  std::string certificate;
  std::string key;
};

// What the certificate says, if a server can show it at `now`: both files can be read, belong
// together, and others than the owner and the group of the key's file cannot read that. The message
// of an error names the file.
absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now);

// In place of a file or its text: the authorities that this machine trusts.
inline constexpr char kSystemAuthorities[] = "system";

// The text of a PEM file with the certificates of authorities; "system" stays what it is.
// kInvalidArgument: it holds no certificate.
absl::StatusOr<std::string> ReadAuthorities(const std::string& path);

}  // namespace trainyard
