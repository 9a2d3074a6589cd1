#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/fleet/agent_link.h"
#include "server/fleet/agent_requests.h"
#include "server/fleet/fleet.h"
#include "server/work/actor.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// One stream of one agent, from Register to its end. Messages are handled in order, one at a time,
// on the fleet's pool; events go to the fleet's committer, several at once, and whatever follows
// them waits until they are stored. Renewals of the lease wait for none of that: they are asked for
// as soon as a heartbeat is received, and made together with those of other agents.
//
// While the store is away nothing is acknowledged and nothing is lost: the message at hand is tried
// again, and those behind it wait in the agent.
class AgentSession : public Actor {
 public:
  AgentSession(Fleet& fleet, Fleet::Admit admit, AgentLink& link);

  // From the link. Thread-safe, never block.
  void Receive(v1::AgentMessage message);
  void Leave();  // the agent is gone

  // From the fleet.
  void NotifyChanged();  // the desired set changed, perhaps
  void EndIfRevoked();   // the key of the node was, perhaps
  // The agent is told at once, also while a call of the store is under way that may take long.
  void EndWith(const absl::Status& status);
  void ReadLog(const v1::RankKey& rank, int64_t offset, int64_t max_bytes,
               const LogRequests::Done& done);
  void Look(v1::LookRequest request, absl::Duration patience, const LookRequests::Done& done);
  // Whether its agent looks at files of jobs; known once it has registered.
  bool looks_at_files() const { return looks_at_files_; }

 private:
  static constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);

  void Work() override;
  // False: the message is not done, and is handled again by the next Work, which runs when the
  // store has answered. kUnavailable: to be tried again; any other error ends the session.
  absl::StatusOr<bool> Handle(const v1::AgentMessage& message);
  absl::Status Admit();
  absl::Status Register(const v1::Register& message);
  // Called before earlier messages are handled: the lease waits for nothing else.
  absl::Status KeepLease(const v1::Heartbeat& heartbeat);
  absl::StatusOr<bool> TakeHeartbeat(const v1::Heartbeat& heartbeat);
  // A renewal of the lease on its way to the store and back.
  struct Renewal {
    std::optional<absl::Status> answer;  // set once, under mu_
  };
  absl::StatusOr<bool> Renew(const v1::Heartbeat& heartbeat);
  std::shared_ptr<Renewal> AskToRenew(const v1::Heartbeat& heartbeat);
  bool MayRenew() const;
  absl::Status FindAbsent(const v1::Heartbeat& heartbeat);
  absl::Status ReportAbsent();
  // Tells the agent which of the states that it keeps in memory nobody will read.
  void FreeUnneeded(const v1::Heartbeat& heartbeat);
  // Events on their way to the store and back.
  struct Sent {
    v1::RankKey key;  // as the agent knows the rank
    RankEvents report;
    std::optional<absl::StatusOr<AppendResult>> answer;  // guarded by mu_
  };
  absl::Status Append(const v1::EventBatch& batch);
  void Commit(const std::shared_ptr<Sent>& sent);
  bool MayHandle(const v1::AgentMessage& message) const;
  absl::Status TakeAnswers();
  absl::Status TakeAnswer(const Sent& sent, absl::StatusOr<AppendResult> result);
  // Events that the store will never take, or an assignment that cannot be made, end their rank and
  // nothing else: it fails, and `fenced` tells the agent to kill it and to forget the rest.
  absl::StatusOr<AppendResult> EndRank(const RankEvents& report, const absl::Status& why);
  void DeliverLog(const v1::LogChunk& chunk);
  absl::Status TakeLeave(const v1::Leaving& message);
  // Sends the desired set if it is not what the agent has; `ranks`: as they were just read.
  absl::Status SendDesired(const NodeRanks& ranks);
  // Wakes whoever has to look again: the feeds of `jobs` go on, slots are free, or the desired sets
  // of `nodes` differ; no nodes: those of any node may.
  void WakeAfterChange(const std::set<std::string>& jobs, const std::vector<std::string>& nodes);
  void Retry(const absl::Status& status);
  void Finish(const absl::Status& status);
  void EndLink(const absl::Status& status);
  // Sends to the link, unless it was ended.
  void Send(const v1::ServerMessage& message);
  void ReadNext();
  bool registered() const { return !node_.empty(); }

  Fleet& fleet_;
  const Fleet::Admit admit_;

  // Used by Work alone; what Register sets is read by Receive, too, which comes after it.
  bool admitted_ = false;
  std::optional<NodeKey> key_;  // of the one node that this session may speak for
  bool finished_ = false;
  std::string node_;         // empty before Register
  AgentIdentity agent_{""};  // likewise
  std::string incarnation_;  // of this session: the agent's own and a part made here
  bool knows_unix_users_ = false;
  int64_t desired_version_ = 0;
  std::string desired_fingerprint_;
  std::string desired_wishes_;      // NodeRanks::wishes, read before that version or later
  std::set<RankId> desired_ranks_;  // of that version
  absl::Duration retry_after_;
  bool kept_ = false;  // the heartbeat at hand renewed the lease, and the agent was told
  // Ranks that are absent by that heartbeat; reported once the lease is renewed again.
  std::vector<RankId> absent_;
  // The set and the ranks that the last heartbeat named which was compared with the store and
  // showed nothing absent; and how many heartbeats have named the same since.
  std::optional<std::pair<int64_t, std::map<RankId, std::string>>> compared_;
  int quiet_heartbeats_ = 0;
  // In order; each shared with the committer until it is answered.
  std::deque<std::shared_ptr<Sent>> sent_;
  bool commit_again_ = false;  // the store was away: once all are answered, all are committed again

  mutable absl::Mutex mu_;
  std::optional<v1::AgentMessage> message_
      ABSL_GUARDED_BY(mu_);                    // the next one is asked for after it
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // for the store to come back
  bool look_again_ ABSL_GUARDED_BY(mu_) = false;
  bool admit_again_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  // Of the heartbeat at hand; shared with the renewer.
  std::shared_ptr<Renewal> renewal_ ABSL_GUARDED_BY(mu_);
  AgentLink* link_ ABSL_GUARDED_BY(mu_);  // null once it was told to finish

  LogRequests logs_;    // closed before the link goes
  LookRequests looks_;  // likewise
  std::atomic<bool> looks_at_files_ = false;
};

}  // namespace trainyard
