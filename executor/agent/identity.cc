#include "executor/agent/identity.h"

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kSecretBytes = 32;

bool IsSecret(const std::string& text) {
  return text.size() == 2 * kSecretBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

absl::StatusOr<std::string> ReadOrMakeSecret(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, 4096);
  if (absl::IsNotFound(text.status())) {
    const std::string made = RandomHex(kSecretBytes);
    TY_RETURN_IF_ERROR(WriteFileAtomically(path, made + "\n", 0600));
    return made;
  }
  TY_RETURN_IF_ERROR(text.status());
  const std::string secret(absl::StripAsciiWhitespace(*text));
  if (!IsSecret(secret)) {
    return absl::DataLossError(
        absl::StrCat(path, ": found ", text->size(), " bytes, expected ", 2 * kSecretBytes,
                     " hex digits; remove the file to enter as a new node once the lease of the "
                     "old one is over"));
  }
  return secret;
}

}  // namespace

absl::StatusOr<Identity> OpenIdentity(const std::string& state_dir) {
  Identity identity;
  TY_ASSIGN_OR_RETURN(identity.secret, ReadOrMakeSecret(state_dir + "/node-secret"));
  struct stat folder {};
  if (stat(state_dir.c_str(), &folder) != 0) return ErrnoStatus(errno, state_dir);
  // A container may hide these two; then machines are told apart by their secrets alone.
  const absl::StatusOr<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", 100);
  const absl::StatusOr<std::string> machine = ReadFile("/sys/class/dmi/id/product_uuid", 100);
  identity.instance =
      absl::StrCat(boot.ok() ? absl::StripAsciiWhitespace(*boot) : "", ":", folder.st_dev, ":",
                   folder.st_ino, ":", machine.ok() ? absl::StripAsciiWhitespace(*machine) : "");
  return identity;
}

}  // namespace trainyard
