#include "executor/worker/confine.h"

#include <errno.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "executor/worker/open_device.h"
#include "storage/base/file.h"
#include "storage/base/kernel_rights.h"
#include "storage/base/status.h"

namespace trainyard::worker {
namespace {

// Programs and libraries, and what the C library, OpenMP, NCCL and CUDA read of the machine.
constexpr const char* kRead[] = {"/usr",
                                 "/lib",
                                 "/lib32",
                                 "/lib64",
                                 "/bin",
                                 "/sbin",
                                 "/etc",
                                 "/opt",
                                 "/proc",
                                 "/sys",
                                 "/run/systemd/resolve",
                                 "/run/nvidia-persistenced"};
constexpr const char* kDevices = "/dev";  // whose own rights count

// What no training needs, and attackers do: to look into other processes, to change what programs
// see of files and users, to load code into the kernel, and interfaces whose bugs gave root before.
constexpr int kNeverNeeded[] = {SCMP_SYS(ptrace),
                                SCMP_SYS(process_vm_readv),
                                SCMP_SYS(process_vm_writev),
                                SCMP_SYS(kcmp),
                                SCMP_SYS(pidfd_getfd),
                                SCMP_SYS(bpf),
                                SCMP_SYS(perf_event_open),
                                SCMP_SYS(userfaultfd),
                                SCMP_SYS(add_key),
                                SCMP_SYS(keyctl),
                                SCMP_SYS(request_key),
                                SCMP_SYS(mount),
                                SCMP_SYS(umount2),
                                SCMP_SYS(move_mount),
                                SCMP_SYS(mount_setattr),
                                SCMP_SYS(open_tree),
                                SCMP_SYS(fsopen),
                                SCMP_SYS(fsconfig),
                                SCMP_SYS(fsmount),
                                SCMP_SYS(fspick),
                                SCMP_SYS(pivot_root),
                                SCMP_SYS(chroot),
                                SCMP_SYS(unshare),
                                SCMP_SYS(setns),
                                SCMP_SYS(init_module),
                                SCMP_SYS(finit_module),
                                SCMP_SYS(delete_module),
                                SCMP_SYS(kexec_load),
                                SCMP_SYS(kexec_file_load),
                                SCMP_SYS(reboot),
                                SCMP_SYS(swapon),
                                SCMP_SYS(swapoff),
                                SCMP_SYS(acct),
                                SCMP_SYS(quotactl),
                                SCMP_SYS(settimeofday),
                                SCMP_SYS(clock_settime),
                                SCMP_SYS(adjtimex),
                                SCMP_SYS(clock_adjtime),
                                SCMP_SYS(sethostname),
                                SCMP_SYS(setdomainname),
                                SCMP_SYS(name_to_handle_at),
                                SCMP_SYS(open_by_handle_at),
                                SCMP_SYS(io_uring_setup),
                                SCMP_SYS(io_uring_enter),
                                SCMP_SYS(io_uring_register),
                                SCMP_SYS(personality),
                                SCMP_SYS(lookup_dcookie),
                                SCMP_SYS(syslog),
                                SCMP_SYS(fanotify_init),
                                SCMP_SYS(vhangup),
                                SCMP_SYS(mknod),
                                SCMP_SYS(mknodat)};

struct FreeFilter {
  void operator()(void* filter) const { seccomp_release(filter); }
};
// Forbids what its rules name, with EPERM, and allows the rest.
class SystemCallFilter {
 public:
  SystemCallFilter() : filter_(seccomp_init(SCMP_ACT_ALLOW)) {
    if (filter_ == nullptr) error_ = ENOMEM;
  }
  void Forbid(int call, int error = EPERM) { Note(Rule(error, call, {})); }
  void ForbidIf(int call, scmp_arg_cmp condition) { Note(Rule(EPERM, call, {condition})); }

  // For all threads.
  absl::Status Enforce() {
    if (error_ == 0) Note(seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_TSYNC, 1));
    // Older kernels slow a filtered process down against a kind of speculation, unless told not to.
    if (error_ == 0) Note(seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_SSB, 1));
    if (error_ == 0) Note(seccomp_load(filter_.get()));
    if (error_ == 0) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("this kernel cannot restrict which system calls a process makes (seccomp): ",
                     ErrnoStatus(error_, "seccomp").message()));
  }

 private:
  int Rule(int error, int call, std::vector<scmp_arg_cmp> conditions) {
    if (error_ != 0) return 0;
    return seccomp_rule_add_array(filter_.get(), SCMP_ACT_ERRNO(error), call, conditions.size(),
                                  conditions.data());
  }
  void Note(int result) {
    if (result < 0 && error_ == 0) error_ = -result;
  }

  std::unique_ptr<void, FreeFilter> filter_;
  int error_ = 0;
};

absl::Status ForbidWhatNobodyNeeds() {
  SystemCallFilter filter;
  for (const int call : kNeverNeeded) filter.Forbid(call);
  return filter.Enforce();
}

absl::Status RestrictToRoots(const Roots& roots) {
  std::error_code error;
  FileRights rights{.read = {std::begin(kRead), std::end(kRead)}};
  rights.read.push_back(std::filesystem::read_symlink("/proc/self/exe", error).parent_path());
  const char* const libraries = getenv("LD_LIBRARY_PATH");
  for (const auto folder : absl::StrSplit(libraries == nullptr ? "" : libraries, ':')) {
    if (!folder.empty()) rights.read.emplace_back(folder);
  }
  rights.read.insert(rights.read.end(), roots.data.begin(), roots.data.end());
  rights.write = {kDevices, "."};
  if (const std::string cache = CacheFolder(); !cache.empty()) rights.write.push_back(cache);
  rights.write.insert(rights.write.end(), roots.checkpoints.begin(), roots.checkpoints.end());
  return RestrictFiles(rights);
}

}  // namespace

absl::Status Confine(const Roots& roots) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "no_new_privs");
  if (!roots.data.empty() || !roots.checkpoints.empty()) {
    TY_RETURN_IF_ERROR(RestrictToRoots(roots));
  }
  return TRAINYARD_FILTERS_CALLS == 1 ? ForbidWhatNobodyNeeds() : absl::OkStatus();
}

absl::Status ConfineToOneProcess() {
  if (TRAINYARD_FILTERS_CALLS != 1) return absl::OkStatus();
  SystemCallFilter filter;
  filter.Forbid(SCMP_SYS(execve));
  filter.Forbid(SCMP_SYS(execveat));
  filter.Forbid(SCMP_SYS(fork));
  filter.Forbid(SCMP_SYS(vfork));
  filter.ForbidIf(SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
  // Its flags are in memory, where a filter cannot look. The C library then calls clone.
  filter.Forbid(SCMP_SYS(clone3), ENOSYS);
  return filter.Enforce();
}

}  // namespace trainyard::worker
