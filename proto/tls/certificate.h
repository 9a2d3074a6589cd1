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
  // SHA-256 of its DER form, and of that of its public key (SubjectPublicKeyInfo), which stays when
  // it is renewed; in lower-case hex.
  std::string fingerprint;
  std::string key_fingerprint;
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

// A new private key, as PEM text.
absl::StatusOr<std::string> MakePrivateKey();

// Asks for a certificate for `private_key` (PKCS #10, RFC 2986), as PEM text: it shows who has that
// key, and is no secret. It names nobody: that is up to the authority.
absl::StatusOr<std::string> MakeSigningRequest(const std::string& private_key);

// The key_fingerprint of what `signing_request` asks for. kInvalidArgument: it is no such request,
// was made by somebody who does not have the key, or is for another kind of key than ours.
absl::StatusOr<std::string> KeyOfSigningRequest(const std::string& signing_request);

// A certificate, and behind it those of the authority, for the key of `signing_request`, which may
// come from anybody: `request` alone decides what it says.
absl::StatusOr<std::string> SignCertificate(const TlsIdentity& authority,
                                            const std::string& signing_request,
                                            const CertificateRequest& request);

}  // namespace trainyard
