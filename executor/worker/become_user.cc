#include "executor/worker/become_user.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::worker {

absl::Status BecomeUser(const run::UnixUser& user) {
  if (user.uid == 0 || user.gid == 0) {
    return absl::PermissionDeniedError(absl::StrCat("'", user.name, "' is root, or of its group"));
  }
  // These three of the C library change all threads. The kernel takes every capability from a
  // process whose user ids stop being root's.
  if (setgroups(user.groups.size(), user.groups.data()) != 0 ||
      setresgid(user.gid, user.gid, user.gid) != 0 ||
      setresuid(user.uid, user.uid, user.uid) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot run as '", user.name, "'"));
  }
  uid_t real = 0, effective = 0, saved = 0;
  if (getresuid(&real, &effective, &saved) != 0 || real != user.uid || effective != user.uid ||
      saved != user.uid || setuid(0) == 0) {
    return absl::InternalError(absl::StrCat("does not run as '", user.name, "' all the same"));
  }
  umask(027);  // the folders above its files say whether its group gets at them
  return absl::OkStatus();
}

void TakeEnvironment(const run::Orders& orders) {
  if (orders.user) {
    std::vector<std::string> ours;
    for (const char* const* entry = environ; *entry != nullptr; ++entry) {
      const absl::string_view text = *entry;
      const bool of_agent = absl::StartsWith(text, "AWS_") || absl::StartsWith(text, "TMPDIR=") ||
                            absl::StartsWith(text, "XDG_CACHE_HOME=") ||
                            absl::StartsWith(text, "TRAINYARD_CACHE=");
      if (of_agent) ours.emplace_back(text.substr(0, text.find('=')));
    }
    for (const std::string& name : ours) unsetenv(name.c_str());
    setenv("HOME", orders.user->home.c_str(), 1);
  }
  for (const auto& [name, value] : orders.environment) setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace trainyard::worker
