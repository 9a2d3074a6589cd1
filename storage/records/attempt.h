#pragma once

// One placement of a job on slots, and its ranks.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/records/job.h"

namespace trainyard {

// Of a rank that fails because another failed, or the link to it: that one's failure says more.
inline constexpr char kPeerCategory[] = "PEER";

struct RankId {
  std::string job_uid;
  int64_t attempt = 0;
  int rank = 0;
  friend auto operator<=>(const RankId&, const RankId&) = default;
};

enum class RankState {
  kAssigned,  // in its node's desired set
  kRunning,   // reported Restored: it steps, or is about to
  kLost,      // its node's lease ended: over for its job, but its process may live
  kGone,      // proven: it exited, or was never started and never will be
};
absl::string_view RankStateName(RankState state);
std::optional<RankState> ParseRankState(absl::string_view name);

// Whether a rank in this state is over for its job: no further report on it is accepted, unless it
// rejoins (MayRejoin).
inline bool IsOver(RankState state) {
  return state == RankState::kLost || state == RankState::kGone;
}

// How a rank left, as far as is known.
enum class RankOutcome { kNone, kSucceeded, kSuspended, kFailed, kKilled, kLost };
absl::string_view RankOutcomeName(RankOutcome outcome);
std::optional<RankOutcome> ParseRankOutcome(absl::string_view name);

// The right to run a rank, given once, with its placement, to one agent.
struct Claim {
  std::string node_uid;  // of the agent; "": an older agent, which proves nothing
  std::string instance;  // its boot and its state directory (NodeRecord::instance)
  std::string token;     // random, so that a restored database does not give it out again
  friend bool operator==(const Claim&, const Claim&) = default;
};

// An agent as it registered: who asks for ranks of a node, or reports on them.
struct AgentIdentity {
  std::string node;  // its name
  std::string uid;
  std::string instance;
  std::string session;  // NodeRecord::incarnation; "": any

  // An older agent says its name alone.
  AgentIdentity(std::string node_name, std::string uid_of = "",  // NOLINT: a name is one
                std::string instance_of = "", std::string session_of = "")
      : node(std::move(node_name)),
        uid(std::move(uid_of)),
        instance(std::move(instance_of)),
        session(std::move(session_of)) {}
  AgentIdentity(const char* node_name) : AgentIdentity(std::string(node_name)) {}  // NOLINT
};

// The BOOT and the MACHINE in an instance, "BOOT:DEVICE:INODE:MACHINE". MACHINE is how the hardware
// identifies itself, which a copy of its disk does not share. "": not given.
absl::string_view BootOf(absl::string_view instance);
absl::string_view MachineOf(absl::string_view instance);
// Whether both name the same boot of the same machine and the same state directory there. Only root
// can read MACHINE, so an agent that runs as root at times gives it at times: one that is missing
// equals any.
bool SameInstance(absl::string_view a, absl::string_view b);

// Whether `agent` has the claim: the same agent, in the same boot, with the same state directory.
// Only it may start the rank, and only its reports are accepted.
bool HasClaim(const AgentIdentity& agent, const Claim& claim);

// Whether `agent` can know that the rank runs no more: it has the claim, or had it on the same
// machine in an earlier boot.
bool CanProveGone(const AgentIdentity& agent, const Claim& claim);

struct RankRecord {
  RankId id;
  std::string node;
  Claim claim;
  std::vector<int> slots;
  RankState state = RankState::kAssigned;
  RankOutcome outcome = RankOutcome::kNone;
  int64_t acked_sequence = 0;  // events stored up to here
  std::optional<FailureRecord> failure;
  absl::Time gone_time = absl::InfinitePast();  // when it became LOST or GONE
};

struct AttemptRecord {
  std::string job_uid;
  int64_t attempt = 0;
  int world_size = 1;
  int64_t restore_step = 0;  // where training goes on from
  std::string restore_uri;   // empty: fresh
  std::string restore_manifest_sha256;
  std::string layout;  // that of its job when it was placed (JobRecord::layout)
  absl::Time create_time;
  absl::Time end_time = absl::InfinitePast();
  std::vector<RankRecord> ranks;
  bool lost_before = false;  // a rank of an earlier attempt of the job is lost
  // A rank that has not begun by then has failed. On the store's clock; set by the leader
  // (server/scheduler/start_judge.h) and not stored.
  absl::Time start_by = absl::InfiniteFuture();
  // Since when there have been slots that it could take and no waiting job could use. Known to the
  // leader alone (server/scheduler/scheduler_state.h), and not stored.
  absl::Time spare_since = absl::InfiniteFuture();
};

bool AnyLost(const AttemptRecord& attempt);  // whether any of its ranks is LOST
bool AllOver(const AttemptRecord& attempt);  // whether all of its ranks are over

// A rank whose process runs, as its agent says.
struct RunningRank {
  RankId id;
  std::string claim;  // Claim::token
};

// Whether a QUEUED job goes on with the LOST ranks of its newest attempt: `agent` has the claims to
// all of them and still runs them. A job with a rank that was lost before it had restored starts
// again instead: nobody knows whether it would be STARTING or RUNNING.
bool MayRejoin(const JobRecord& job, const AttemptRecord& attempt, const AgentIdentity& agent,
               const std::vector<RunningRank>& running);

// A text that stands for what a node's ranks should do: if two texts of one node are equal,
// DesiredStateOf returns the same for each of its ranks.
class DesiredStateKey {
 public:
  void Add(const RankId& rank, int world_size, JobState state, RankOutcome outcome,
           int64_t job_version);
  // Empty: what the ranks should do depends on the time.
  std::string Text() const { return timed_ ? "" : text_; }

 private:
  std::string text_ = "ranks";
  bool timed_ = false;
};

// The nodes of its ranks, each once, by name.
std::vector<std::string> NodesOf(const AttemptRecord& attempt);
// What its ranks have, by rank.
std::vector<RankSlots> SlotsOf(const AttemptRecord& attempt);

// The failure of a rank whose node was lost. A rank with the outcome kLost but without this failure
// fenced itself: its agent heard nothing from the server for too long, which says nothing about the
// node.
FailureRecord LossOf(const RankRecord& rank);

// What must happen to a job because of the ranks of its newest attempt. Pure.
struct AttemptVerdict {
  // One rank failed, so the gang is over: those that are not gone must be killed, but for ranks
  // that leave their state first (MayLeaveState).
  bool stop_the_rest = false;
  // Set once all ranks are gone (or, for kFirstStep, once all are running).
  std::optional<JobTrigger> trigger;
  Reason reason;
  // The one that decides: not retryable before retryable, then the first.
  std::optional<FailureRecord> failure;
  bool spends_restart = false;  // with kRetry: counts against max_restarts
  absl::Duration backoff =
      absl::ZeroDuration();  // with kRetry: how long the job waits in the queue
};
AttemptVerdict EvaluateAttempt(const JobRecord& job, const AttemptRecord& attempt);

// So many nodes in a row may be lost under a job, without a newer checkpoint, at no cost. Each
// further loss costs it a restart, because the job itself may be what takes them down.
inline constexpr int kFreeLosses = 2;

// Why a job runs: it begins (step 0), or goes on from the checkpoint of `step`.
Reason RunningFrom(int64_t step);

// What the node of a rank should do with it now. kSuspend: it leaves by itself; one whose gang
// broke does so in any case, and saves its state first if it can. Once it is kStop it stays kStop,
// except for lost ranks that rejoin (MayRejoin). Pure.
enum class DesiredRankState { kRun, kSuspend, kStop };
DesiredRankState DesiredStateOf(const JobRecord& job, const AttemptRecord& attempt,
                                const RankRecord& rank, absl::Time now);

// Whether the gang of this rank broke while it trained, and the rank may leave its state, which is
// that of the whole gang, or a share of it, in the memory of its node, for the next attempt.
bool MayLeaveState(const JobRecord& job, const AttemptRecord& attempt, const RankRecord& rank);

// The ranks that have reported that they have the state or their share of it
// (FailureRecord::has_state) and are not over. Empty while any other rank may yet report it.
std::vector<int> SurvivorsOf(const AttemptRecord& attempt);

// Where the state of an attempt stays that is being suspended, as one of its ranks sees it: in a
// checkpoint or, if it is resized and the next attempt has some of its nodes, in the memory of one
// of these: perhaps that of the rank, or another one. kHereAlone: the gang broke. One rank of each
// node leaves the state there or, if each rank has a share, one rank of the whole gang
// (MayLeaveState).
enum class StateStays { kInCheckpoint, kHere, kElsewhere, kHereAlone };
StateStays StateStaysFor(const JobRecord& job, const AttemptRecord& attempt,
                         const RankRecord& rank);

// What an attempt before this one left in memory; its step is 0: none did.
struct KeptState {
  int64_t attempt = 0;
  int64_t step = 0;
};
KeptState KeptStateFor(const JobRecord& job, const AttemptRecord& attempt);

// What an attempt left in the memory of a node.
struct LeftState {
  std::string job_uid;
  int64_t attempt = 0;
  friend bool operator==(const LeftState&, const LeftState&) = default;
};
// Whether a later attempt may yet read what `attempt` left, or `attempt` is not over.
bool MayNeedState(const JobRecord& job, int64_t attempt);

// How many attempts after the one that left a state may start from it. More are not tried, since
// the state itself may be what makes them fail.
inline constexpr int kTriesWithKeptState = 2;
bool MayTryKeptState(const JobRecord& job, int64_t attempt);

// Attempt `number` of the job, which is `attempt`; null when there is none. kNotFound says what is
// missing.
absl::StatusOr<AttemptRecord> PickAttempt(const JobRecord& job, int64_t number,
                                          const AttemptRecord* attempt);

// Rank `rank` of attempt `number` of the job; `attempt` is null when there is none. kNotFound says
// what is missing.
absl::StatusOr<RankRecord> PickRank(const JobRecord& job, int64_t number,
                                    const AttemptRecord* attempt, int rank);

// Backoff before restart number `restart` (from 1): base * 2^(restart-1), at most 5 minutes.
absl::Duration RestartBackoff(absl::Duration base, int restart);

}  // namespace trainyard
