// What a confined worker cannot do, tried by a child process of its own each time.

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "executor/worker/become_user.h"
#include "executor/worker/confine.h"
#include "storage/base/file.h"
#include "storage/base/kernel_rights.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::worker {
namespace {

// errno of an attempt, 0 if it succeeded.
using Attempt = std::function<int()>;

const run::UnixUser kNobody{.name = "nobody", .uid = 65534, .gid = 65534, .groups = {65534}};

int ErrorOf(int64_t result) { return result < 0 ? errno : 0; }
int Open(const std::string& path, int flags) {
  return ErrorOf(FileDescriptor(open(path.c_str(), flags | O_CLOEXEC, 0600)).get());
}

// The version of Landlock's interface that this kernel has.
const long kLandlock = syscall(SYS_landlock_create_ruleset, nullptr, 0, 1);

class ConfineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CanRestrictFiles().ok() || !CanFilterCalls().ok()) GTEST_SKIP() << CanRestrictFiles();
    for (const char* folder : {"data", "checkpoints", "rank", "other"}) {
      ASSERT_TRUE(MakeDirectories(Path(folder), 0777).ok());
      ASSERT_EQ(chmod(Path(folder).c_str(), 0777), 0);
      std::ofstream(Path(folder) + "/file") << "text";
      ASSERT_EQ(chmod((Path(folder) + "/file").c_str(), 0666), 0);
    }
    ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
    ASSERT_EQ(symlink((Path("other") + "/file").c_str(), (Path("data") + "/link").c_str()), 0);
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  // In a child that works in its rank's folder and was confined, in its first step and then in its
  // second. A negative number: it did not come so far.
  int Try(const Attempt& attempt, const std::optional<run::UnixUser>& user = std::nullopt) {
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(Path("rank").c_str()) != 0) _exit(255);
      if (!Confine({.data = {Path("data")}, .checkpoints = {Path("checkpoints")}}).ok()) _exit(254);
      if (user && !BecomeUser(*user).ok()) _exit(253);
      if (!ConfineToOneProcess().ok()) _exit(252);
      _exit(attempt());
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  engine::TempFolder folder_;
};

TEST_F(ConfineTest, FilesAreThoseOfTheRootsAndItsOwn) {
  const struct {
    std::string path;
    int flags;
    int expected;
  } cases[] = {
      {Path("data") + "/file", O_RDONLY, 0},
      {Path("data") + "/file", O_WRONLY, EACCES},
      {Path("data") + "/file", O_RDONLY | O_TRUNC, kLandlock >= 3 ? EACCES : 0},
      {Path("data") + "/new", O_WRONLY | O_CREAT, EACCES},
      {Path("data") + "/link", O_RDONLY, EACCES},
      {Path("data") + "/../other/file", O_RDONLY, EACCES},
      {Path("checkpoints") + "/file", O_RDWR, 0},
      {Path("checkpoints") + "/new", O_WRONLY | O_CREAT, 0},
      {Path("other") + "/file", O_RDONLY, EACCES},
      {"file", O_RDWR, 0},
      {"/etc/passwd", O_RDONLY, 0},
      {"/etc/passwd", O_WRONLY, EACCES},
      {"/tmp", O_RDONLY | O_DIRECTORY, EACCES},
      {"/dev/null", O_RDWR, 0},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(Try([&] { return Open(one.path, one.flags); }), one.expected)
        << one.path << " " << one.flags;
  }
}

TEST_F(ConfineTest, AFolderKeepsItsRightsWhenItIsRenamed) {
  int told[2], named[2];
  ASSERT_EQ(pipe2(told, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(named, O_CLOEXEC), 0);
  // A process, since Try forks and a thread might be in the middle of something then.
  const pid_t agent = fork();
  if (agent == 0) {
    char byte = 0;
    const bool done = read(told[0], &byte, 1) == 1 &&
                      rename(Path("rank").c_str(), Path("named").c_str()) == 0 &&
                      write(named[1], "x", 1) == 1;
    _exit(done ? 0 : 1);
  }
  EXPECT_EQ(Try([&] {
              char byte = 0;
              if (write(told[1], "x", 1) != 1 || read(named[0], &byte, 1) != 1) return 255;
              return Open(Path("named") + "/file", O_RDWR) | Open("./new", O_RDWR | O_CREAT);
            }),
            0);
  int status = 0;
  ASSERT_EQ(waitpid(agent, &status, 0), agent);
  EXPECT_EQ(status, 0);
}

// Of the same user, too.
TEST_F(ConfineTest, AnotherProcessIsOutOfReach) {
  const std::optional<run::UnixUser> user =
      geteuid() == 0 ? std::optional(kNobody) : std::optional<run::UnixUser>();
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t victim = fork();
  if (victim == 0) {
    if (user && !BecomeUser(*user).ok()) _exit(1);
    prctl(PR_SET_DUMPABLE, 1);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  iovec here{&byte, 1}, there{&byte, 1};
  const auto in_proc = [&](const char* name) {
    return Try([&] { return Open(absl::StrCat("/proc/", victim, "/", name), O_RDONLY); }, user);
  };
  EXPECT_NE(Try([&] { return ErrorOf(ptrace(PTRACE_ATTACH, victim, nullptr, nullptr)); }, user), 0);
  EXPECT_NE(Try([&] { return ErrorOf(process_vm_readv(victim, &here, 1, &there, 1, 0)); }, user),
            0);
  for (const char* name : {"environ", "mem", "root", "cwd", "fd/0", "maps"}) {
    EXPECT_NE(in_proc(name), 0) << name;
  }
  EXPECT_EQ(in_proc("status"), 0);
  EXPECT_EQ(Try([&] { return ErrorOf(kill(victim, 0)); }, user),
            TRAINYARD_FILTERS_CALLS == 1 || kLandlock >= 6 ? EPERM : 0);
  EXPECT_EQ(Try([&] { return ErrorOf(kill(-1, 0)); }, user),
            TRAINYARD_FILTERS_CALLS == 1 ? EPERM : 0);
  EXPECT_EQ(Try([&] { return ErrorOf(kill(getpid(), 0)); }, user), 0);
  // The user's own services would start programs for it.
  EXPECT_EQ(Try([] { return ErrorOf(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }, user),
            TRAINYARD_FILTERS_CALLS == 1 ? EPERM : 0);
  // The kernel looks at 32 of the 64 bits.
  EXPECT_EQ(Try([] { return ErrorOf(syscall(SYS_socket, 0x100000001, SOCK_STREAM, 0)); }, user),
            TRAINYARD_FILTERS_CALLS == 1 ? EPERM : 0);
  EXPECT_EQ(Try([] { return ErrorOf(socket(AF_UNIX, SOCK_DGRAM, 0)); }, user), 0);
  EXPECT_EQ(Try([] { return ErrorOf(socket(AF_INET, SOCK_STREAM, 0)); }, user), 0);
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
}

TEST_F(ConfineTest, NoOtherProgramAndNoOtherProcessBegin) {
  if (TRAINYARD_FILTERS_CALLS != 1) GTEST_SKIP() << "sanitizers start processes";
  EXPECT_EQ(Try([] {
              char name[] = "/bin/true";
              char* arguments[] = {name, nullptr};
              return ErrorOf(execv(name, arguments));
            }),
            EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(fork()); }), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(syscall(SYS_clone3, nullptr, 0)); }), ENOSYS);
  // Threads do.
  EXPECT_EQ(Try([] {
              int seen = 1;
              std::thread([&seen] { seen = 0; }).join();
              return seen;
            }),
            0);
}

TEST_F(ConfineTest, ThreadsThatWereThereBeforeAreConfinedToo) {
  if (TRAINYARD_FILTERS_CALLS != 1) GTEST_SKIP() << "sanitizers start processes";
  const pid_t child = fork();
  if (child == 0) {
    int ends[2];
    if (pipe(ends) != 0) _exit(255);
    int result = -1;
    std::thread waits([&] {
      char byte = 0;
      if (read(ends[0], &byte, 1) == 1) result = ErrorOf(fork());
    });
    if (!ConfineToOneProcess().ok()) _exit(254);
    if (write(ends[1], "x", 1) != 1) _exit(253);
    waits.join();
    _exit(result);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), EPERM);
}

TEST_F(ConfineTest, WhatOnlyAttackersCallIsRefused) {
  if (TRAINYARD_FILTERS_CALLS != 1) GTEST_SKIP() << "sanitizers call some of it";
  EXPECT_EQ(Try([] { return ErrorOf(mount("none", "/mnt", "tmpfs", 0, nullptr)); }), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(unshare(CLONE_NEWUSER)); }), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(syscall(SYS_bpf, 0, nullptr, 0)); }), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(syscall(SYS_io_uring_setup, 1, nullptr)); }), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(syscall(SYS_keyctl, 0, 0, 0, 0, 0)); }), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(mknod("node", S_IFCHR | 0600, 0)); }), EPERM);
}

TEST_F(ConfineTest, RootKeepsOnlyWhatFilesOfOthersTake) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone has anything to lose";
  EXPECT_EQ(Try([] { return ErrorOf(sethostname("x", 1)); }), EPERM);
  EXPECT_EQ(Try([] { return Open("/dev/kmsg", O_RDONLY); }), EACCES);
  EXPECT_EQ(Try([] { return ErrorOf(setpriority(PRIO_PROCESS, 0, -1)); }), 0);
  EXPECT_EQ(Try([] { return ErrorOf(prctl(PR_CAPBSET_DROP, 0, 0, 0, 0)); }), EPERM);
}

TEST_F(ConfineTest, WhoHasBecomeAUserHasNoWayBack) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  EXPECT_EQ(Try([] { return getuid() == 65534 && getegid() == 65534 ? 0 : 1; }, kNobody), 0);
  EXPECT_EQ(Try([] { return ErrorOf(setuid(0)); }, kNobody), EPERM);
  EXPECT_EQ(Try([] { return ErrorOf(setgroups(0, nullptr)); }, kNobody), EPERM);
  EXPECT_EQ(Try([] { return Open("/etc/shadow", O_RDONLY); }, kNobody), EACCES);
  EXPECT_EQ(Try([&] { return Open(Path("checkpoints") + "/theirs", O_WRONLY | O_CREAT); }, kNobody),
            0);
  struct stat info {};
  ASSERT_EQ(stat((Path("checkpoints") + "/theirs").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  EXPECT_FALSE(BecomeUser({.name = "root"}).ok());
}

}  // namespace
}  // namespace trainyard::worker
