#include "server/auth/node_admission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/tls/join_token_file.h"
#include "storage/base/digest.h"
#include "storage/base/field_error.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// Nodes renew when half of it is over; a machine that was switched off for longer needs a new join
// token.
constexpr absl::Duration kNodesCertificateValid = absl::Hours(24 * 30);
constexpr size_t kLargestSigningRequest = 4096;

absl::StatusOr<std::string> KeyOf(const std::string& signing_request) {
  if (signing_request.size() > kLargestSigningRequest) {
    return FieldError("signing_request", absl::StrCat(signing_request.size(), " bytes"),
                      absl::StrCat("at most ", kLargestSigningRequest));
  }
  absl::StatusOr<std::string> key = KeyOfSigningRequest(signing_request);
  if (!key.ok()) return Annotate(key.status(), "signing_request");
  return key;
}

}  // namespace

absl::StatusOr<NodeAdmission::NewToken> NodeAdmission::MakeToken(const JoinToken& wanted,
                                                                 absl::Duration valid_for) {
  const JoinTokenFile file{.token = MakeJoinToken(), .authorities = authority_.certificates};
  JoinToken token = wanted;
  token.id = RandomHex(8);
  token.sha256 = Sha256Hex(file.token);
  TY_ASSIGN_OR_RETURN(const CertificateFacts authority,
                      ReadCertificate(authority_.certificates, "the yard's authority"));
  TY_ASSIGN_OR_RETURN(token, store_.AddJoinToken(token, valid_for));
  return NewToken{.token = std::move(token),
                  .file = JoinTokenFileText(file),
                  .authority_fingerprint = authority.fingerprint};
}

absl::StatusOr<NodeAdmission::Admitted> NodeAdmission::Certify(
    NodeKey key, const std::string& signing_request) const {
  Admitted admitted;
  TY_ASSIGN_OR_RETURN(
      admitted.certificate,
      SignCertificate(authority_, signing_request,
                      {.name = key.node, .of_client = true, .valid_for = kNodesCertificateValid}));
  admitted.key = std::move(key);
  return admitted;
}

absl::StatusOr<NodeAdmission::Admitted> NodeAdmission::Join(const std::string& token,
                                                            const std::string& signing_request,
                                                            const std::string& node,
                                                            const std::string& node_uid) {
  JoinWish wish{.token_sha256 = Sha256Hex(token), .node = node, .node_uid = node_uid};
  TY_ASSIGN_OR_RETURN(wish.fingerprint, KeyOf(signing_request));
  TY_ASSIGN_OR_RETURN(NodeKey key, store_.Join(wish));
  return Certify(std::move(key), signing_request);
}

absl::StatusOr<NodeKey> NodeAdmission::Recognize(const std::string& certificate) {
  if (certificate.empty()) {
    return absl::UnauthenticatedError(
        "no certificate: this port is for agents that have joined; start the agent with "
        "--join-token, a file that `trainyard admin join-token` makes");
  }
  TY_ASSIGN_OR_RETURN(const CertificateFacts facts,
                      ReadCertificate(certificate, "the certificate of the caller"));
  absl::StatusOr<NodeKey> key = store_.FindNodeKey(facts.key_fingerprint);
  if (absl::IsNotFound(key.status())) {
    return absl::UnauthenticatedError(absl::StrCat(
        "no node joined with the key of the certificate of '", facts.subject,
        "': it is not of an agent of this yard, or the yard's database was set back since; the ",
        "agent can join again with a new token once node.pem is removed from its state directory"));
  }
  TY_RETURN_IF_ERROR(key.status());
  TY_RETURN_IF_ERROR(CheckNotRevoked(*key));
  return key;
}

absl::StatusOr<NodeAdmission::Admitted> NodeAdmission::Renew(const std::string& certificate,
                                                             const std::string& signing_request) {
  TY_ASSIGN_OR_RETURN(NodeKey key, Recognize(certificate));
  TY_ASSIGN_OR_RETURN(const std::string asked, KeyOf(signing_request));
  if (asked != key.fingerprint) {
    return FieldError("signing_request", "another key", "that of the certificate to be renewed");
  }
  return Certify(std::move(key), signing_request);
}

}  // namespace trainyard
