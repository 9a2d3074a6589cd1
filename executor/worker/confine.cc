#include "executor/worker/confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
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
// Devices, whose own rights count; of NVIDIA's there are as many as the machine has GPUs.
constexpr const char* kDevices[] = {"/dev/null",    "/dev/zero",       "/dev/full", "/dev/random",
                                    "/dev/urandom", "/dev/infiniband", "/dev/shm",  "/dev/gdrdrv"};
constexpr char kNvidia[] = "nvidia";
// Links to these lead to folders that differ between machines.
constexpr const char* kLinked[] = {"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf",
                                   "/etc/localtime", "/etc/ssl/certs/ca-certificates.crt"};

// Of root's capabilities those that a rank without a user of its own may need: to use files of
// others, to become a user, to lock memory for the network.
constexpr int kKept[] = {CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,  CAP_FSETID,
                         CAP_SETGID, CAP_SETUID,       CAP_IPC_LOCK,        CAP_SYS_NICE};

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
  void ForbidIf(int call, std::vector<scmp_arg_cmp> conditions) {
    Note(Rule(EPERM, call, std::move(conditions)));
  }

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

absl::Status DropCapabilities() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  if (syscall(SYS_capget, &header, data) != 0) return ErrnoStatus(errno, "capget");
  __user_cap_data_struct kept[_LINUX_CAPABILITY_U32S_3]{};
  for (const int capability : kKept) {
    kept[CAP_TO_INDEX(capability)].permitted |= CAP_TO_MASK(capability);
  }
  for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; ++i) {
    data[i].permitted &= kept[i].permitted;
    data[i].effective = data[i].permitted;
    data[i].inheritable = 0;
  }
  if (syscall(SYS_capset, &header, data) != 0) return ErrnoStatus(errno, "capset");
  return absl::OkStatus();
}

absl::Status RestrictToRoots(const run::Roots& roots) {
  std::error_code error;
  FileRights rights{.read = {std::begin(kRead), std::end(kRead)}};
  rights.read.push_back(std::filesystem::read_symlink("/proc/self/exe", error).parent_path());
  const char* const libraries = getenv("LD_LIBRARY_PATH");
  for (const auto folder : absl::StrSplit(libraries == nullptr ? "" : libraries, ':')) {
    if (!folder.empty()) rights.read.emplace_back(folder);
  }
  rights.read.insert(rights.read.end(), roots.data.begin(), roots.data.end());
  for (const char* const path : kLinked) {
    const std::filesystem::path real = std::filesystem::canonical(path, error);
    if (!error) rights.read.push_back(real);
  }
  rights.write = {std::begin(kDevices), std::end(kDevices)};
  for (const auto& device : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = device.path().filename();
    if (absl::StartsWith(name, kNvidia)) rights.write.push_back(device.path());
  }
  rights.write.emplace_back(".");
  if (const std::string cache = CacheFolder(); !cache.empty()) rights.write.push_back(cache);
  rights.write.insert(rights.write.end(), roots.checkpoints.begin(), roots.checkpoints.end());
  return RestrictFiles(rights);
}

}  // namespace

absl::Status Confine(const run::Roots& roots) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  // Networks with remote access to memory lock it, as root could without a limit.
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_MEMLOCK, &all);
  TY_RETURN_IF_ERROR(DropCapabilities());
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "no_new_privs");
  if (!roots.empty()) {
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
  filter.ForbidIf(SCMP_SYS(clone), {SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0)});
  // Its flags are in memory, where a filter cannot look. The C library then calls clone.
  filter.Forbid(SCMP_SYS(clone3), ENOSYS);
  // Other processes of its user: by signals, and by asking the user's own services, which listen at
  // UNIX sockets and start programs. NCCL's and our own such sockets are of datagrams.
  const auto self = static_cast<scmp_datum_t>(getpid());
  for (const int call :
       {SCMP_SYS(kill), SCMP_SYS(tgkill), SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(rt_tgsigqueueinfo)}) {
    filter.ForbidIf(call, {SCMP_A0(SCMP_CMP_NE, self)});
  }
  filter.Forbid(SCMP_SYS(tkill));
  filter.Forbid(SCMP_SYS(pidfd_send_signal));
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    filter.ForbidIf(SCMP_SYS(socket),
                    {SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffff, AF_UNIX),
                     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xf, static_cast<scmp_datum_t>(type))});
  }
  return filter.Enforce();
}

absl::Status ConfineToNoNetwork() {
  if (TRAINYARD_FILTERS_CALLS != 1) return absl::OkStatus();
  SystemCallFilter filter;
  filter.Forbid(SCMP_SYS(socket), EACCES);
  filter.Forbid(SCMP_SYS(socketpair), EACCES);
  return filter.Enforce();
}

}  // namespace trainyard::worker
