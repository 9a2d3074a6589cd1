#include "server/auth/authority.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/tls/pem_files.h"
#include "server/auth/sealed.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::Duration kAuthorityValid = absl::Hours(24 * 3650);

absl::StatusOr<std::string> ReadKey(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, path);
  TY_RETURN_IF_ERROR(CheckIsSecret(file.get(), path, "the key of the yard's authority"));
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

// Whole or not at all: what opens the authority must outlive a crash in between. kAlreadyExists:
// another server of this machine was first.
absl::Status WriteNewKey(const std::string& path, const std::string& key) {
  const std::string made = absl::StrCat(path, ".", RandomHex(8));
  TY_RETURN_IF_ERROR(
      WriteFileAtomically(made, absl::StrCat(absl::BytesToHexString(key), "\n"), 0600));
  const int error = link(made.c_str(), path.c_str()) == 0 ? 0 : errno;
  unlink(made.c_str());
  if (error == EEXIST) return absl::AlreadyExistsError(path);
  if (error != 0) return ErrnoStatus(error, path);
  const size_t slash = path.rfind('/');
  return FsyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

absl::StatusOr<AuthorityRecord> MakeRecord(const std::string& key) {
  TY_ASSIGN_OR_RETURN(const TlsIdentity made,
                      MakeAuthority(absl::StrCat("Trainyard ", RandomHex(4)), kAuthorityValid));
  AuthorityRecord record{.certificate = made.certificates};
  TY_ASSIGN_OR_RETURN(record.sealed_key, Seal(key, made.key, made.certificates));
  return record;
}

// kFailedPrecondition: `key`, of `key_file`, is that of another authority.
absl::StatusOr<TlsIdentity> OpenRecord(const AuthorityRecord& record, const std::string& key,
                                       const std::string& key_file) {
  const auto opened = Unseal(key, record.sealed_key, record.certificate);
  if (opened.ok()) return TlsIdentity{.certificates = record.certificate, .key = *opened};
  if (!absl::IsDataLoss(opened.status())) return opened.status();
  return absl::FailedPreconditionError(
      absl::StrCat(key_file, " does not open the yard's authority (", opened.status().message(),
                   "); copy it from another server of the yard"));
}

}  // namespace

absl::StatusOr<TlsIdentity> OpenAuthority(AuthorityStore& store, const std::string& key_file) {
  TY_ASSIGN_OR_RETURN(const std::optional<AuthorityRecord> record, store.FindAuthority());
  if (record.has_value()) {
    const absl::StatusOr<std::string> key = ReadKey(key_file);
    if (key.ok()) return OpenRecord(*record, *key, key_file);
    if (!absl::IsNotFound(key.status())) return key.status();
    return absl::FailedPreconditionError(
        absl::StrCat("the yard has an authority, and ", key_file,
                     ", which opens it, is not here; copy it from another server of the yard"));
  }
  const absl::Status written = WriteNewKey(key_file, MakeSealKey());
  if (!written.ok() && !absl::IsAlreadyExists(written)) return written;
  TY_ASSIGN_OR_RETURN(const std::string key, ReadKey(key_file));
  TY_ASSIGN_OR_RETURN(const AuthorityRecord made, MakeRecord(key));
  TY_ASSIGN_OR_RETURN(const AuthorityRecord kept, store.AddAuthority(made));
  if (kept.certificate == made.certificate) {
    spdlog::warn("made the yard an authority; keep a copy of {}: nothing else opens it", key_file);
  }
  absl::StatusOr<TlsIdentity> opened = OpenRecord(kept, key, key_file);
  // A server of another machine was first: the new key opens nothing. One of this machine that was
  // first took this key.
  if (absl::IsFailedPrecondition(opened.status()) && written.ok()) unlink(key_file.c_str());
  return opened;
}

}  // namespace trainyard
