#include "server/auth/authority.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/auth/sealed.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::Duration kAuthorityValid = absl::Hours(24 * 3650);
constexpr absl::Duration kServerValid = absl::Hours(24 * 60);

absl::StatusOr<std::string> ReadKey(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        path, " opens the yard's authority and others may read it; run `chmod 600 ", path, "`"));
  }
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 4096));
  const std::string hex(absl::StripAsciiWhitespace(text));
  const bool digits = hex.size() == 2 * kSealKeyBytes &&
                      hex.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!digits) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected the key of the yard's authority, 64 hex digits"));
  }
  return absl::HexStringToBytes(hex);
}

// Of two servers that begin on one machine at once, the second one reads what the first one made.
absl::StatusOr<std::string> ReadOrMakeKey(const std::string& path) {
  const std::string key = MakeSealKey();
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid() && errno == EEXIST) return ReadKey(path);
  if (!file.valid()) return ErrnoStatus(errno, path);
  TY_RETURN_IF_ERROR(WriteAll(file.get(), absl::StrCat(absl::BytesToHexString(key), "\n"), path));
  if (fsync(file.get()) != 0) return ErrnoStatus(errno, path);
  return key;
}

absl::StatusOr<AuthorityRecord> MakeRecord(const std::string& key) {
  TY_ASSIGN_OR_RETURN(const TlsIdentity made,
                      MakeAuthority(absl::StrCat("Trainyard ", RandomHex(4)), kAuthorityValid));
  AuthorityRecord record{.certificate = made.certificates};
  TY_ASSIGN_OR_RETURN(record.sealed_key, Seal(key, made.key, made.certificates));
  return record;
}

}  // namespace

absl::StatusOr<TlsIdentity> OpenAuthority(AuthorityStore& store, const std::string& key_file) {
  TY_ASSIGN_OR_RETURN(std::optional<AuthorityRecord> record, store.FindAuthority());
  absl::StatusOr<std::string> key =
      record.has_value() ? ReadKey(key_file) : ReadOrMakeKey(key_file);
  if (record.has_value() && absl::IsNotFound(key.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the yard has an authority, and ", key_file,
                     ", which opens it, is not here; copy it from another server of the yard"));
  }
  TY_RETURN_IF_ERROR(key.status());
  if (!record.has_value()) {
    TY_ASSIGN_OR_RETURN(const AuthorityRecord made, MakeRecord(*key));
    TY_ASSIGN_OR_RETURN(record, store.AddAuthority(made));
  }
  TlsIdentity authority{.certificates = record->certificate};
  const auto opened = Unseal(*key, record->sealed_key, record->certificate);
  if (!opened.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(key_file, " does not open the yard's authority (", opened.status().message(),
                     "); copy it from another server of the yard"));
  }
  authority.key = *opened;
  return authority;
}

absl::StatusOr<OwnCertificate> OwnCertificate::Issue(TlsIdentity authority,
                                                     std::vector<std::string> hosts) {
  OwnCertificate own(std::move(authority), std::move(hosts));
  TY_RETURN_IF_ERROR(own.Renew());
  own.path_ = absl::StrCat("/proc/self/fd/", own.memory_.get());
  return own;
}

absl::Status OwnCertificate::Renew() {
  TY_ASSIGN_OR_RETURN(const TlsIdentity identity,
                      IssueCertificate(authority_, {.name = "trainyard-server",
                                                    .hosts = hosts_,
                                                    .of_server = true,
                                                    .valid_for = kServerValid}));
  FileDescriptor made(memfd_create("trainyard-certificate", MFD_CLOEXEC));
  if (!made.valid() || fchmod(made.get(), 0600) != 0) return ErrnoStatus(errno, "memory");
  TY_RETURN_IF_ERROR(
      WriteAll(made.get(), absl::StrCat(identity.key, identity.certificates), "memory"));
  if (!memory_.valid()) {
    memory_ = std::move(made);
    return absl::OkStatus();
  }
  // The path leads to the new file from one moment to the next.
  if (dup3(made.get(), memory_.get(), O_CLOEXEC) < 0) return ErrnoStatus(errno, "memory");
  return absl::OkStatus();
}

}  // namespace trainyard
