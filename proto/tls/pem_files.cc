#include "proto/tls/pem_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int64_t kLargestFile = 1 << 20;

// Bundles of all public authorities have some 200 KiB.
constexpr size_t kMostAuthorities = 32 << 10;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("expected the path of a PEM file, found ''");
  return ReadFile(path, kLargestFile);
}

}  // namespace

absl::Status CheckIsSecret(int fd, const std::string& path, const std::string& what) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, path);
  if ((info.st_mode & 007) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path, " holds ", what, " and everybody may read it; run `chmod o= ", path, "`"));
}

absl::StatusOr<TlsIdentity> ReadTlsFiles(const TlsFiles& files, absl::Time now) {
  TlsIdentity identity;
  TY_ASSIGN_OR_RETURN(identity.certificates, ReadPem(files.certificate));
  TY_ASSIGN_OR_RETURN(identity.key, ReadPem(files.key));
  const FileDescriptor key(open(files.key.c_str(), O_RDONLY | O_CLOEXEC));
  if (!key.valid()) return ErrnoStatus(errno, files.key);
  TY_RETURN_IF_ERROR(CheckIsSecret(key.get(), files.key, "a private key"));
  TY_ASSIGN_OR_RETURN(const CertificateFacts facts,
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
  return identity;
}

absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now) {
  TY_ASSIGN_OR_RETURN(const TlsIdentity identity, ReadTlsFiles(files, now));
  return ReadCertificate(identity.certificates, files.certificate);
}

absl::StatusOr<std::string> ReadAuthorities(const std::string& path) {
  if (path == kSystemAuthorities) return path;
  TY_ASSIGN_OR_RETURN(const std::string pem, ReadPem(path));
  TY_ASSIGN_OR_RETURN(std::string authorities, CertificatesIn(pem, path));
  if (authorities.size() <= kMostAuthorities) return authorities;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " holds ", authorities.size(), " bytes of certificates, expected at most ",
                   kMostAuthorities, ": name those that vouch for the server alone, or say ",
                   kSystemAuthorities));
}

absl::Status PemInMemory::Write(const std::string& pem) {
  FileDescriptor made(memfd_create("trainyard-pem", MFD_CLOEXEC));
  if (!made.valid() || fchmod(made.get(), 0600) != 0) {
    return ErrnoStatus(errno, "a file in memory for a certificate");
  }
  TY_RETURN_IF_ERROR(WriteAll(made.get(), pem, "a file in memory for a certificate"));
  if (!memory_.valid()) {
    memory_ = std::move(made);
    path_ = absl::StrCat("/proc/self/fd/", memory_.get());
    return absl::OkStatus();
  }
  // The path leads to the new file at once, or to the old one.
  if (dup3(made.get(), memory_.get(), O_CLOEXEC) >= 0) return absl::OkStatus();
  return ErrnoStatus(errno, "a file in memory for a certificate");
}

}  // namespace trainyard
