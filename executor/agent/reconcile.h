#pragma once

// What to do so that the node runs what the server wants: a pure function.

#include <string>
#include <vector>

#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// A rank that has a run directory here.
struct PresentRank {
  std::string name;   // run::RunDirectory::NameOf its key
  std::string claim;  // under which it was started; empty: it is from before there were claims
  enum Phase {
    kAlive,     // its process runs
    kStopping,  // it was told to die and is not proven gone
    kGone,      // proven gone
  } phase = kAlive;
  std::vector<int> slots;
  bool listens = false;  // it wrote its first event: from then on SIGTERM means suspend
  bool suspend_sent = false;
  bool grace_over = false;  // suspend was sent and the grace time has passed
  bool delivered = false;   // gone, and the server has its last event or wants no more
  bool retired = false;     // kept for its log only
};

struct Action {
  enum Kind {
    kStart,
    kDecline,  // to suspend before it ever started: report it suspended where it would start
    kSuspend,  // SIGTERM
    kKill,     // SIGKILL to the group
    kRetire,   // nothing to do for it any more: keep the log for a while
    kForget,   // delete its directory: the rank is to be started under another claim
  } kind = kStart;
  std::string name;
  friend bool operator==(const Action&, const Action&) = default;
};

// Whether `claim`, under which a rank of the same name was started, is another one than
// `assignment`'s. It is not if one of the two is empty (from before there were claims).
bool HasDifferentClaim(const std::string& claim, const v1::Assignment& assignment);

// A rank that has a directory is never started again under its claim, so an attempt's rank runs at
// most once. Another claim to the same rank is given by a database that was restored and counts
// attempts anew: what ran under the old claim is not wanted, and is removed first. A rank whose
// slots another process still holds waits; call again once that process is gone. `may_start`: the
// lease holds.
std::vector<Action> Reconcile(const v1::DesiredSet& desired,
                              const std::vector<PresentRank>& present, bool may_start);

}  // namespace trainyard
