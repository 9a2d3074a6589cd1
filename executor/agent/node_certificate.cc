#include "executor/agent/node_certificate.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr char kKey[] = "node.key", kCertificate[] = "node.pem", kYard[] = "yard.pem";
constexpr int64_t kLargest = 64 << 10;

std::string When(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

}  // namespace

bool NodeCertificate::exists() const {
  return access(PathOf(kKey).c_str(), F_OK) == 0 && access(PathOf(kCertificate).c_str(), F_OK) == 0;
}

absl::StatusOr<std::string> NodeCertificate::ReadKey() const {
  return ReadFile(PathOf(kKey), kLargest);
}

absl::Status NodeCertificate::Forget() const {
  if (unlink(PathOf(kCertificate).c_str()) == 0 || errno == ENOENT) return FsyncDirectory(folder_);
  return ErrnoStatus(errno, PathOf(kCertificate));
}

absl::StatusOr<NodeCertificate::Files> NodeCertificate::Read(absl::Time now) const {
  if (!exists()) return absl::NotFoundError("this node has not joined the yard yet");
  Files files;
  TY_ASSIGN_OR_RETURN(files.own.key, ReadKey());
  TY_ASSIGN_OR_RETURN(files.own.certificates, ReadFile(PathOf(kCertificate), kLargest));
  absl::StatusOr<std::string> yard = ReadFile(PathOf(kYard), kLargest);
  if (yard.ok()) yard = CertificatesIn(*yard, PathOf(kYard));
  if (!yard.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(yard.status().message(), "; it is the certificate of the yard's authority: ",
                     "`trainyard-server authority` prints it"));
  }
  files.authorities = *std::move(yard);
  TY_RETURN_IF_ERROR(Annotate(CheckKeyOfCertificate(files.own),
                              absl::StrCat(PathOf(kCertificate), " and ", kKey)));
  TY_ASSIGN_OR_RETURN(const CertificateFacts facts,
                      ReadCertificate(files.own.certificates, PathOf(kCertificate)));
  if (now >= facts.not_after || now < facts.not_before) {
    return absl::FailedPreconditionError(
        absl::StrCat("the certificate of this node was valid from ", When(facts.not_before), " to ",
                     When(facts.not_after), ", and by this machine's clock it is ", When(now)));
  }
  files.should_renew = now - facts.not_before > (facts.not_after - facts.not_before) / 2;
  return files;
}

absl::StatusOr<std::string> NodeCertificate::SigningRequest() const {
  absl::StatusOr<std::string> key = ReadKey();
  if (absl::IsNotFound(key.status())) {
    TY_RETURN_IF_ERROR(Forget());
    TY_ASSIGN_OR_RETURN(key, MakePrivateKey());
    TY_RETURN_IF_ERROR(WriteFileAtomically(PathOf(kKey), *key, 0600));
  }
  TY_RETURN_IF_ERROR(key.status());
  absl::StatusOr<std::string> request = MakeSigningRequest(*key);
  if (!request.ok()) return Annotate(request.status(), PathOf(kKey));
  return request;
}

absl::Status NodeCertificate::Keep(const std::string& certificates,
                                   const std::string& authorities) const {
  TY_ASSIGN_OR_RETURN(const std::string key, ReadKey());
  TY_RETURN_IF_ERROR(Annotate(CheckKeyOfCertificate({certificates, key}), "what the yard sent"));
  if (ReadFile(PathOf(kYard), kLargest).value_or("") != authorities) {
    TY_RETURN_IF_ERROR(Forget());
    TY_RETURN_IF_ERROR(WriteFileAtomically(PathOf(kYard), authorities, 0600));
  }
  return WriteFileAtomically(PathOf(kCertificate), certificates, 0600);
}

}  // namespace trainyard
