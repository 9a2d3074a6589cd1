#include "proto/tls/pem_files.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int64_t kLargestFile = 1 << 20;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  return ReadFile(path, kLargestFile);
}

}  // namespace

absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now) {
  TlsIdentity identity;
  TY_ASSIGN_OR_RETURN(identity.certificates, ReadPem(files.certificate));
  TY_ASSIGN_OR_RETURN(identity.key, ReadPem(files.key));
  struct stat info;
  if (stat(files.key.c_str(), &info) != 0) return ErrnoStatus(errno, files.key);
  if ((info.st_mode & 007) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        files.key, " holds a private key and everybody may read it; run `chmod o= ", files.key,
        "`"));
  }
  TY_ASSIGN_OR_RETURN(CertificateFacts facts,
                      ReadCertificate(identity.certificates, files.certificate));
  if (const absl::Status pair = CheckKeyOfCertificate(identity); !pair.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.key, " beside ", files.certificate, ": ", pair.message()));
  }
  if (now > facts.not_after || now < facts.not_before) {
    return absl::FailedPreconditionError(
        absl::StrCat(files.certificate, " is valid from ", absl::FormatTime(facts.not_before),
                     " to ", absl::FormatTime(facts.not_after), ", not now"));
  }
  return facts;
}

absl::StatusOr<std::string> ReadAuthorities(const std::string& path) {
  if (path == kSystemAuthorities) return path;
  TY_ASSIGN_OR_RETURN(std::string authorities, ReadPem(path));
  TY_RETURN_IF_ERROR(ReadCertificate(authorities, path).status());
  return authorities;
}

}  // namespace trainyard
