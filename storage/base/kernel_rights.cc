#include "storage/base/kernel_rights.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// Of kernels newer than the headers that this may be compiled with.
constexpr uint64_t kRefer = 1u << 13, kTruncate = 1u << 14, kIoctlOfDevices = 1u << 15;
constexpr uint64_t kSignals = 1u << 1;  // a scope
struct Ruleset {
  uint64_t of_files = 0, of_network = 0, scopes = 0;
};

constexpr uint64_t kRead =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kOfFiles = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE |
                              LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate | kIoctlOfDevices;

// All that a kernel of this version of the interface can forbid.
Ruleset AllOf(long version) {
  Ruleset all{.of_files = kRefer - 1};
  if (version >= 2) all.of_files |= kRefer;
  if (version >= 3) all.of_files |= kTruncate;
  if (version >= 5) all.of_files |= kIoctlOfDevices;
  if (version >= 6) all.scopes = kSignals;
  return all;
}

// A kernel refuses bytes that it does not know unless they are zero.
size_t BytesKnownTo(long version) {
  return version >= 6 ? sizeof(Ruleset) : version >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
}

// Of the interface, as the kernel has it.
absl::StatusOr<long> LandlockVersion() {
  const long version =
      syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version >= 1) return version;
  return absl::UnimplementedError(absl::StrCat(
      "this kernel cannot restrict which files a process may use: Landlock is ",
      errno == EOPNOTSUPP ? "switched off (it must stand in the kernel's parameter lsm=)"
                          : "not part of it (Linux 5.13 with CONFIG_SECURITY_LANDLOCK)"));
}

absl::Status Allow(int ruleset, const std::string& path, uint64_t rights) {
  const FileDescriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!file.valid() && (errno == ENOENT || errno == ENOTDIR)) return absl::OkStatus();
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0) return ErrnoStatus(errno, path);
  landlock_path_beneath_attr rule{};
  rule.allowed_access = S_ISDIR(info.st_mode) ? rights : rights & kOfFiles;
  rule.parent_fd = file.get();
  if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, path);
}

}  // namespace

absl::Status CanRestrictFiles() { return LandlockVersion().status(); }

absl::Status CanFilterCalls() {
  const uint32_t action = SECCOMP_RET_ERRNO;
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0) return absl::OkStatus();
  return absl::UnimplementedError(
      "this kernel cannot restrict which system calls a process makes (Linux 4.14 with "
      "CONFIG_SECCOMP_FILTER)");
}

absl::Status RestrictFiles(const FileRights& rights) {
  TY_ASSIGN_OR_RETURN(const long version, LandlockVersion());
  const Ruleset all = AllOf(version);
  const FileDescriptor ruleset(
      static_cast<int>(syscall(SYS_landlock_create_ruleset, &all, BytesKnownTo(version), 0)));
  if (!ruleset.valid()) return ErrnoStatus(errno, "landlock_create_ruleset");
  for (const std::string& path : rights.read) {
    TY_RETURN_IF_ERROR(Allow(ruleset.get(), path, kRead & all.of_files));
  }
  for (const std::string& path : rights.write) {
    TY_RETURN_IF_ERROR(Allow(ruleset.get(), path, all.of_files));
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "no_new_privs");
  if (syscall(SYS_landlock_restrict_self, ruleset.get(), 0) != 0) {
    return ErrnoStatus(errno, "landlock_restrict_self");
  }
  return absl::OkStatus();
}

}  // namespace trainyard
