#pragma once

// As whom ranks run, and what of this node is theirs.

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "executor/run/orders.h"

namespace trainyard {

struct UserRules {
  uid_t least_uid = 1000;  // below it are users of the system
  bool required = false;   // no rank runs as the agent
};

// The user of that name on this node, with those of its groups that are none of the system's;
// nullopt: it is the agent's own, or none is named.
//   kFailedPrecondition  none is named and the rules require one, or it may not be that one
//   kUnavailable         this node does not know it, or its agent may run nothing as another user
// Asks the machine's directory of users, which may take long where that is on another one.
absl::StatusOr<std::optional<run::UnixUser>> FindUnixUser(const std::string& name,
                                                          const UserRules& rules);

// Gives the folder of a rank that has not begun to its user, as run_directory.h says: what it may
// read and what it may write.
absl::Status HandOver(const std::string& run_directory, const run::UnixUser& user);

// Makes the folder of the project, one above that of the job's checkpoints (an URI), if it is a
// local one and not there: the user's, for nobody else. Whoever wants the user's group to read may
// open it to that. kUnavailable: it is there and somebody else's, or open to everybody.
absl::Status MakeProjectFolder(const std::string& checkpoint_root, const run::UnixUser& user);

}  // namespace trainyard
