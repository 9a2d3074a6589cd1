#pragma once

// Nodes, their leases, and what their ranks report.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/status.h"
#include "storage/records/attempt.h"
#include "storage/records/feed.h"
#include "storage/records/node.h"

namespace trainyard {

// One rank that a node should run, with what the worker must know.
struct DesiredRank {
  RankRecord rank;
  JobRecord job;
  AttemptRecord attempt;
  bool suspend = false;  // wish: checkpoint and exit
  absl::Time suspend_deadline = absl::InfiniteFuture();
  std::vector<std::string> addresses;  // of the nodes, by rank
};

struct AppendResult {
  int64_t acked_sequence = 0;
  // The attempt is not the job's newest one, or the rank is over already, or another agent, or
  // another life of it, has its claim, or the job was deleted: nothing was written and nothing will
  // be.
  bool fenced = false;
  // The job's state changed, or a rank left or failed (slots or desired sets differ): wake the
  // scheduler and the fleet.
  bool job_changed = false;
  std::vector<std::string> nodes;  // of the attempt's ranks: whose desired sets may differ then
  // The rank is lost, and so is the lease of the session that reports on it: whether the rank goes
  // on shows with the next session.
  bool session_over = false;
  // What was added to the feed of the job, in order, with sequences; runs of metrics as runs:
  // SingleItems (records/feed.h) makes of them what ReadFeeds gives from now on. What several
  // entries of a group added to one feed may lie together in the answer of the first of them.
  SharedItems items;  // null: nothing here
  // Everything that came of these events for the feed is in `items`, here or in an earlier answer
  // of the same group. False where they had been stored before: whoever has to know what came of
  // them reads the feed.
  bool items_known = false;
};

// What one rank reports through its agent.
struct RankEvents {
  AgentIdentity agent;
  RankId rank;
  std::vector<RankEventRecord> events;
  std::string claim;  // Claim::token; "": an agent of before, which was not told
};

// Whether the report is of whoever has the claim to `rank`.
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

// A rank of a node that is not gone.
struct HeldRank {
  RankId id;
  Claim claim;
};

// All of them, and what the node's desired set follows from.
struct NodeRanks {
  std::vector<HeldRank> ranks;  // lost ones, too
  // Differs from that of an earlier reading if the desired sets differ in which ranks should run.
  // Empty: that may change by itself, and the set has to be read.
  std::string wishes;
};

// Thread-safe. Every method is one transaction.
class FleetStore {
 public:
  virtual ~FleetStore() = default;

  // A new session: inserts or replaces the node's description; lease_end = store's now + `lease`.
  // Draining survives. An agent that proves who it is takes over the claims that it had when it was
  // of a version that proved nothing. Jobs that wait because this agent's node was lost go on where
  // MayRejoin allows it: their ranks, `running` of the answer, are in its desired set again.
  // kFailedPrecondition: another agent holds the name (CheckNameIsFree).
  virtual absl::StatusOr<NodeRecord> RegisterNode(const NodeRecord& node, absl::Duration lease) = 0;

  // Extends each lease and takes what its agent reports, all in one statement; each is answered for
  // itself. Of several for one session the last one's report stays. kAborted when `incarnation` is
  // not the newest of that node, or the lease was already taken back (reachable = false): the agent
  // must stop its work and register again. kUnavailable also for a lease that somebody is changing
  // right now: it is to be tried again, and keeps no other waiting.
  virtual std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) = 0;

  // The same for one.
  absl::Status RenewLease(const std::string& node, const std::string& incarnation,
                          absl::Duration lease, const NodeReport& report) {
    return RenewLeases({{node, incarnation, lease, report}})[0];
  }

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
  absl::StatusOr<AppendResult> AppendEvents(const AgentIdentity& agent, const RankId& rank,
                                            const std::vector<RankEventRecord>& events) {
    return AppendEvents(RankEvents{.agent = agent, .rank = rank, .events = events});
  }

  // AppendEvents for each of `group`, in this order, with as few commits as the store can: each is
  // answered for itself, and one that is refused or fenced does its neighbours no harm. Once one is
  // answered with kUnavailable, so are those behind it.
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

  // The agent reconciled a desired set without these ranks and has no such process: each that is
  // not gone yet becomes gone, killed if it was not lost before. EvaluateAttempt() applies. A rank
  // that should be alive now is left alone: it was placed after that set was read; so is one of
  // which the agent cannot know (CanProveGone). Returns whether any job changed or slot was freed.
  virtual absl::StatusOr<bool> ReportAbsent(const AgentIdentity& agent,
                                            const std::vector<RankId>& ranks) = 0;

  // The word of an operator who looked: nothing of this node's lost ranks runs any more. They are
  // gone. Returns how many. kNotFound: no such node.
  virtual absl::StatusOr<int> ConfirmEmpty(const std::string& node) = 0;

  // Costs little beside ReadDesired: an agent's every heartbeat asks for it.
  virtual absl::StatusOr<NodeRanks> ReadRanks(const std::string& node) = 0;
  absl::StatusOr<std::vector<RankId>> ListRanks(const std::string& node) {
    TY_ASSIGN_OR_RETURN(const NodeRanks read, ReadRanks(node));
    std::vector<RankId> ids;
    for (const HeldRank& rank : read.ranks) ids.push_back(rank.id);
    return ids;
  }

  virtual absl::StatusOr<std::vector<NodeRecord>> ListNodes() = 0;
  virtual absl::StatusOr<NodeRecord> SetDraining(const std::string& node, bool draining) = 0;

  // Node and slots of an attempt's rank; attempt 0 means the newest. kNotFound says what is
  // missing.
  virtual absl::StatusOr<RankRecord> FindRank(const std::string& job_uid, int64_t attempt,
                                              int rank) = 0;
  virtual absl::StatusOr<std::vector<AttemptRecord>> ListAttempts(const std::string& job_uid) = 0;
};

}  // namespace trainyard
