#include "executor/agent/unix_user.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "executor/run/run_directory.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kMostOfEntry = 1 << 20;  // bytes
constexpr int kMostGroups = 65536;

absl::StatusOr<run::UnixUser> LookUp(const std::string& name) {
  std::vector<char> room(4096);
  passwd entry{};
  passwd* found = nullptr;
  int error = 0;
  while ((error = getpwnam_r(name.c_str(), &entry, room.data(), room.size(), &found)) == ERANGE &&
         room.size() < kMostOfEntry) {
    room.resize(room.size() * 2);
  }
  if (found == nullptr) {
    return absl::UnavailableError(
        error == 0 || error == ENOENT || error == ESRCH
            ? absl::StrCat("this node knows no user '", name, "', as whom the project runs")
            : std::string(ErrnoStatus(error, absl::StrCat("user '", name, "'")).message()));
  }
  run::UnixUser user{.name = name, .uid = entry.pw_uid, .gid = entry.pw_gid, .home = entry.pw_dir};
  int count = 64;
  user.groups.resize(count);
  while (getgrouplist(name.c_str(), user.gid, user.groups.data(), &count) < 0) {
    if (count > kMostGroups) {
      return absl::UnavailableError(absl::StrCat("user '", name, "' has ", count, " groups"));
    }
    user.groups.resize(count);
  }
  user.groups.resize(count);
  return user;
}

// Without the groups that machines give rights over themselves to: of disks, of containers.
void KeepOwnGroups(const UserRules& rules, run::UnixUser& user) {
  std::erase_if(user.groups, [&](gid_t group) {
    return group == 0 || (group != user.gid && group < rules.least_uid);
  });
}

// Makes the folder and those above it, which others than their owner may pass through, whatever the
// mask of this process says.
absl::Status MakePassable(const std::filesystem::path& path) {
  constexpr mode_t kPassable = 0711;
  std::error_code error;
  if (path.empty() || std::filesystem::exists(path, error)) return absl::OkStatus();
  TY_RETURN_IF_ERROR(MakePassable(path.parent_path()));
  if (mkdir(path.c_str(), 0700) != 0) {
    return errno == EEXIST ? absl::OkStatus() : ErrnoStatus(errno, path.string());
  }
  if (chmod(path.c_str(), kPassable) != 0) return ErrnoStatus(errno, path.string());
  return absl::OkStatus();
}

// Makes it the user's before it has its name, by which other nodes may look for it at any time. One
// that has something in it is left as it is.
absl::Status MakeFolderOf(const std::string& folder, const run::UnixUser& user) {
  const std::string trial = absl::StrCat(folder, ".", RandomHex(8));
  if (mkdir(trial.c_str(), 0700) != 0) return ErrnoStatus(errno, trial);
  absl::Status made;
  if (lchown(trial.c_str(), user.uid, user.gid) != 0) made = ErrnoStatus(errno, trial);
  if (made.ok() && rename(trial.c_str(), folder.c_str()) == 0) return made;
  if (made.ok() && errno != EEXIST && errno != ENOTEMPTY) made = ErrnoStatus(errno, folder);
  rmdir(trial.c_str());
  return made;
}

absl::Status CheckProjectFolder(const std::string& folder, const struct stat& info,
                                const run::UnixUser& user) {
  if (!S_ISDIR(info.st_mode) || info.st_uid != user.uid) {
    return absl::UnavailableError(absl::StrCat(
        folder, ": holds checkpoints of the project, which runs as ", user.name, ", and ",
        S_ISDIR(info.st_mode) ? absl::StrCat("belongs to uid ", info.st_uid) : "is no folder",
        "; whoever may should run: chown -R ", user.name, ": ", folder));
  }
  if ((info.st_mode & S_IRWXO) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      folder, ": holds checkpoints of the project, and users of other projects may use it, too; ",
      "whoever may should run: chmod o= ", folder));
}

}  // namespace

absl::StatusOr<std::optional<run::UnixUser>> FindUnixUser(const std::string& name,
                                                          const UserRules& rules) {
  if (name.empty()) {
    if (!rules.required) return std::nullopt;
    return absl::FailedPreconditionError(
        "this node runs nothing as its agent (--require-user), and the project has no user: an "
        "admin gives it one with `trainyard admin project set PROJECT --unix-user NAME`");
  }
  TY_ASSIGN_OR_RETURN(run::UnixUser user, LookUp(name));
  if (user.uid == geteuid() && user.uid != 0) return std::nullopt;
  if (user.uid < rules.least_uid || user.gid == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the project is to run as '", name, "' (uid ", user.uid, ", gid ", user.gid,
                     "), a user of the system; expected one from uid ", rules.least_uid,
                     " on (--least-uid), whose group is not root's"));
  }
  if (geteuid() != 0) {
    return absl::UnavailableError(absl::StrCat(
        "the project is to run as '", name, "', and this node's agent, which runs as uid ",
        geteuid(), ", may run nothing as another user: start it as root"));
  }
  KeepOwnGroups(rules, user);
  return user;
}

absl::Status HandOver(const std::string& path, const run::UnixUser& user) {
  const run::RunDirectory directory(path);
  // The bit makes files that the agent puts here later the group's, too.
  constexpr mode_t kSearchedByGroup = S_ISGID | 0710;
  if (chown(path.c_str(), -1, user.gid) != 0 || chmod(path.c_str(), kSearchedByGroup) != 0) {
    return ErrnoStatus(errno, path);
  }
  for (const std::string& file :
       {directory.assignment_path(), directory.claim_path(), directory.lease_path()}) {
    if (lchown(file.c_str(), -1, user.gid) != 0 && errno != ENOENT) return ErrnoStatus(errno, file);
  }
  const std::string events = directory.events_path();
  if (lchown(events.c_str(), user.uid, user.gid) != 0) return ErrnoStatus(errno, events);
  return absl::OkStatus();
}

absl::Status MakeProjectFolder(const std::string& checkpoint_root, const run::UnixUser& user) {
  absl::string_view path = checkpoint_root;
  if (!absl::ConsumePrefix(&path, "file://")) return absl::OkStatus();
  const std::filesystem::path job = std::string(absl::StripSuffix(path, "/"));
  const std::string folder = job.parent_path().string();
  struct stat info {};
  if (lstat(folder.c_str(), &info) == 0) return CheckProjectFolder(folder, info, user);
  if (errno != ENOENT) return ErrnoStatus(errno, folder);
  TY_RETURN_IF_ERROR(MakePassable(job.parent_path().parent_path()));
  TY_RETURN_IF_ERROR(
      Annotate(MakeFolderOf(folder, user),
               absl::StrCat("cannot make the folder of the project for ", user.name)));
  // Another node may have been first.
  if (lstat(folder.c_str(), &info) != 0) return ErrnoStatus(errno, folder);
  return CheckProjectFolder(folder, info, user);
}

}  // namespace trainyard
