#pragma once

// Nodes, their leases, and what their ranks report.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/records/attempt.h"
#include "storage/records/feed.h"
#include "storage/records/node.h"

namespace trainyard {

// One rank that a node should run, with what the worker must know.
struct DesiredRank {
  RankRecord rank;
  JobRecord job;
  AttemptRecord attempt;
  bool suspend = false;  // the rank should write a checkpoint and exit
  absl::Time suspend_deadline = absl::InfiniteFuture();
  std::vector<std::string> addresses;  // of each rank's node, by rank
  std::string unix_user;               // of its project now; empty: none
};

struct AppendResult {
  int64_t acked_sequence = 0;
  // Nothing was written and nothing will be: the job was deleted, the attempt is not its newest
  // one, the rank is already over, or the claim to it belongs to another agent, or to another boot
  // or state directory of this one.
  bool fenced = false;
  // The job's state changed, or a rank left or failed (slots or desired sets differ): wake the
  // scheduler and the fleet.
  bool job_changed = false;
  // The nodes of the attempt's ranks. If job_changed, their desired sets may differ.
  std::vector<std::string> nodes;
  // The rank is LOST, and the lease of the session that reports on it is over: only the agent's
  // next session tells whether the rank goes on (MayRejoin).
  bool session_over = false;
  // The items that were added to the job's feed, in order and with their sequences. Runs of metrics
  // stay runs here; SingleItems (records/feed.h) turns them into the items that ReadFeeds returns.
  // If several entries of a group added to the same feed, all their items may be in the answer to
  // the first of these entries.
  SharedItems items;  // null: none in this answer
  // All feed items that these events produced are in `items`, of this answer or of an earlier one
  // of the same group. False if the events had been stored before: which items they produced must
  // then be read from the feed.
  bool items_known = false;
};

// What one rank reports through its agent.
struct RankEvents {
  AgentIdentity agent;
  RankId rank;
  std::vector<RankEventRecord> events;
  std::string claim;  // Claim::token; "": an older agent, which was never told one
};

// Whether the report comes from the agent that has the claim to `rank`.
inline bool MayReport(const RankEvents& report, const RankRecord& rank) {
  return rank.node == report.agent.node && HasClaim(report.agent, rank.claim) &&
         (report.claim.empty() || report.claim == rank.claim.token);
}

// One heartbeat of an agent.
struct LeaseRenewal {
  std::string node;
  std::string incarnation;  // of the session that renews
  absl::Duration lease;
  NodeReport report;
};

// A rank of a node, in any state but GONE.
struct HeldRank {
  RankId id;
  Claim claim;
};

// All ranks of a node that are not GONE, and a text that shows whether its desired set may have
// changed.
struct NodeRanks {
  std::vector<HeldRank> ranks;  // including LOST ones
  // DesiredStateKey of the node. If it equals that of an earlier reading, the same ranks should
  // run, in the same way. Empty: what should run also depends on the time, so the desired set has
  // to be read.
  std::string wishes;
};

// Thread-safe. Every method is one transaction.
class FleetStore {
 public:
  virtual ~FleetStore() = default;

  // Begins a new session: inserts or replaces the node's description, and sets lease_end to the
  // store's now + `lease`. Draining survives. An agent that proves its identity takes over the
  // claims that it was given while it ran a version that proved nothing. Jobs that wait because
  // this agent's node was lost go on if MayRejoin allows it: their ranks are in the desired set
  // again, and in `running` of the answer. kFailedPrecondition: another agent holds the name
  // (CheckNameIsFree), or a key does that this one does not show (CheckNameHasNoKey).
  // kPermissionDenied: its key was revoked; one that is revoked later takes its lease back.
  virtual absl::StatusOr<NodeRecord> RegisterNode(const NodeRecord& node, absl::Duration lease) = 0;

  // Extends each lease and stores its agent's report, all in one statement, with an answer for
  // each. Of several renewals for one session the last one's report is kept. kAborted when
  // `incarnation` is not the newest of that node, or the lease was already taken back (reachable =
  // false): the agent must stop its work and register again. kUnavailable also for a lease that
  // another transaction is changing right now: it should be tried again, and does not delay the
  // others.
  virtual std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) = 0;

  // All ranks of this node to which `agent` has the claim and that should be alive (DesiredStateOf
  // in records/attempt.h): job STARTING, RUNNING or SUSPENDING within its deadline, and no rank of
  // the attempt failed. kAborted: the lease of its session is over.
  virtual absl::StatusOr<std::vector<DesiredRank>> ReadDesired(const AgentIdentity& agent) = 0;

  // Stores events of one rank. Takes those with sequence = acked + 1, acked + 2, …; earlier ones
  // are skipped, a gap is kInvalidArgument. Appends feed items, records checkpoints, moves the
  // rank, and moves the job by EvaluateAttempt(): all in one transaction, fenced by attempt and
  // claim. Only rank 0 reports metrics and checkpoints of the job; those of other ranks are
  // kInvalidArgument. A metric that the current series already has (same step and split) is
  // dropped.
  virtual absl::StatusOr<AppendResult> AppendEvents(const RankEvents& report) = 0;

  // Does AppendEvents for each entry of `group`, in this order, with as few commits as the store
  // can. Each entry gets its own answer, and one that is refused or fenced does not affect the
  // others. Once one is answered with kUnavailable, so are all behind it.
  virtual std::vector<absl::StatusOr<AppendResult>> AppendGroup(
      const std::vector<RankEvents>& group) {
    std::vector<absl::StatusOr<AppendResult>> answers;
    absl::Status away;
    for (const RankEvents& one : group) {
      answers.push_back(away.ok() ? AppendEvents(one) : away);
      if (absl::IsUnavailable(answers.back().status())) away = answers.back().status();
    }
    return answers;
  }

  // The agent reconciled a desired set that does not have these ranks, and runs no such process.
  // Each of them that is not GONE yet becomes GONE, with the outcome KILLED if it had none;
  // EvaluateAttempt() then applies to its job. A rank that should be alive now is left alone,
  // because it was placed after that set was read; so is one of which the agent cannot know
  // (CanProveGone). Returns whether any job changed or any slot was freed.
  virtual absl::StatusOr<bool> ReportAbsent(const AgentIdentity& agent,
                                            const std::vector<RankId>& ranks) = 0;

  // An operator has looked at the node and states that none of its LOST ranks runs any more: they
  // become GONE. Returns how many. kNotFound: no such node.
  virtual absl::StatusOr<int> ConfirmEmpty(const std::string& node) = 0;

  // The ranks of the node that are not GONE. It costs little compared with ReadDesired, because
  // agents' heartbeats ask for it.
  virtual absl::StatusOr<NodeRanks> ReadRanks(const std::string& node) = 0;

  // Of these states those that no attempt will read any more (MayNeedState).
  virtual absl::StatusOr<std::vector<LeftState>> FindUnneeded(
      const std::vector<LeftState>& states) = 0;

  virtual absl::StatusOr<std::vector<NodeRecord>> ListNodes() = 0;
  virtual absl::StatusOr<NodeRecord> SetDraining(const std::string& node, bool draining) = 0;

  // The agent leaves: nothing is placed on its node any more until it registers again, and what
  // runs there should be gone after `grace`. kAborted: the lease of its session is over.
  virtual absl::Status SetLeaving(const AgentIdentity& agent, absl::Duration grace) = 0;

  // Node and slots of an attempt's rank; attempt 0 means the newest. kNotFound says what is
  // missing.
  virtual absl::StatusOr<RankRecord> FindRank(const std::string& job_uid, int64_t attempt,
                                              int rank) = 0;
  // An attempt with all its ranks; 0 means the newest. kNotFound says what is missing.
  virtual absl::StatusOr<AttemptRecord> FindAttempt(const std::string& job_uid,
                                                    int64_t attempt) = 0;
  virtual absl::StatusOr<std::vector<AttemptRecord>> ListAttempts(const std::string& job_uid) = 0;
};

}  // namespace trainyard
