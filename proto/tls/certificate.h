#pragma once

// X.509 certificates (RFC 5280) with ECDSA keys on P-256, as PEM text.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

// A certificate and the private key to it.
struct TlsIdentity {
  std::string certificates;  // its own first, then those of the authorities that vouch for it
  std::string key;           // PKCS #8, not encrypted; secret
};

// What a certificate says.
struct CertificateFacts {
  std::string subject;             // its common name
  std::vector<std::string> hosts;  // DNS names and IP addresses that it stands for
  absl::Time not_before;
  absl::Time not_after;
  bool is_authority = false;  // may sign others
  std::string fingerprint;    // SHA-256 of its DER form, in lower-case hex
};

// Of the first certificate in `pem`. kInvalidArgument: there is none; `source` says where `pem` is
// from.
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem, const std::string& source);

// All certificates in `pem`, as PEM text, and nothing else. kInvalidArgument: there is none.
absl::StatusOr<std::string> CertificatesIn(const std::string& pem, const std::string& source);

// kInvalidArgument: one of the two is no PEM, or the key is not that of the first certificate.
absl::Status CheckKeyOfCertificate(const TlsIdentity& identity);

// A new authority with the common name `name`, which signs itself. It may sign certificates of
// servers and nodes, and no other authorities. It has been valid for a month.
absl::StatusOr<TlsIdentity> MakeAuthority(const std::string& name, absl::Duration valid_for);

struct CertificateRequest {
  std::string name;                // common name, at most 64 bytes
  std::vector<std::string> hosts;  // DNS names, with "*." in front perhaps, and IP addresses
  // What it may be used for, by RFC 5280's extended key usage: one of them at least, since a
  // certificate that names none may be used for anything.
  bool of_server = false;
  bool of_client = false;
  absl::Duration valid_for;  // from now on; it has been valid for a day: clocks differ
};

// kInvalidArgument unless it is a DNS name or an IP address.
absl::Status CheckHost(const std::string& host);

// A new key and a certificate for it that `authority` signs. It ends no later than the authority's
// own.
absl::StatusOr<TlsIdentity> IssueCertificate(const TlsIdentity& authority,
                                             const CertificateRequest& request);

}  // namespace trainyard
