#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/fleet/agent_link.h"
#include "server/fleet/agent_requests.h"
#include "server/fleet/event_committer.h"
#include "server/fleet/lease_renewer.h"
#include "server/work/task_pool.h"
#include "storage/base/clock.h"
#include "storage/fleet_store.h"
#include "storage/records/node_key.h"
#include "storage/wakeups.h"
#include "trainyard/v1/facts.pb.h"

namespace trainyard {

class AgentSession;
using LookRequests = AgentRequests<v1::LookAnswer>;

struct FleetOptions {
  std::string checkpoint_root;  // URI
  absl::Duration heartbeat = absl::Seconds(2);
  absl::Duration lease = absl::Seconds(10);
  absl::Duration self_fence = absl::Seconds(8);
  absl::Duration orphan_limit = absl::Minutes(10);  // for workers without a lease
  // Of heartbeats that say nothing new one in so many is compared with the store, in case a wake-up
  // was lost.
  int heartbeats_per_look = 5;
  // The pause between two renewals of leases, per node: 100 ms with 1,000 nodes and more.
  absl::Duration renewals_rest_per_node = absl::Microseconds(100);
  absl::Duration longest_retry =
      absl::Milliseconds(500);                     // between attempts while the store is away
  absl::Duration log_timeout = absl::Seconds(10);  // for an agent to answer
};

// The wake-up that ends the session of a node whose key was just revoked.
std::string RevokedTopic(const std::string& node);

// The agents that are connected to this server. Thread-safe.
class Fleet {
 public:
  // `pool`, the store, the wake-ups and the clock must outlive it and its sessions. `listener`, if
  // there is one, passes what sessions store on to the watchers of this server, who are then not
  // woken to read it.
  Fleet(FleetStore& store, Wakeups& wakeups, TaskPool& pool, Clock& clock, FleetOptions options,
        FeedListener listener = nullptr);
  ~Fleet();

  // Checks the caller's credentials; may block. The key of the node as which alone the caller may
  // register; nullopt: as any.
  using Admit = std::function<absl::StatusOr<std::optional<NodeKey>>()>;

  // A session that does nothing yet; `link` must live until Finish was called on it.
  std::shared_ptr<AgentSession> Make(Admit admit, AgentLink& link);
  void Begin(const std::shared_ptr<AgentSession>& session);

  // Asks the agent of `node`. `done` is called once, on any thread, and must not block:
  //   kUnavailable  the node is not connected to this server, went away, or did not answer in time
  //   else          what the agent says about its file
  void ReadLog(const RankRecord& rank, int64_t offset, int64_t max_bytes,
               const LogRequests::Done& done);

  // Has agents look at the files of a job as the user whom `request` names, one after the other, at
  // most three, while they say that the files are not to be seen. May block until then.
  //   kUnavailable  no agent that is connected to this server looks at files, or none answered
  //   else          as the worker says (executor/facts/look.h); `unseen`, which stays false
  //                 otherwise: the files are not to be seen from where somebody looked
  absl::StatusOr<v1::DataFacts> Look(const v1::LookRequest& request, absl::Time until,
                                     bool& unseen);

  // `why` not OK: the store is away. Ends every session, also those that begin until this is called
  // with OK, so that agents look for a server whose store answers.
  void SetStoreAway(const absl::Status& why);

  // Ends every session, also those that begin later.
  void Drain(const absl::Status& status);

  int connected() const;
  absl::Duration lease() const { return options_.lease; }  // of an agent, from each heartbeat on

 private:
  friend class AgentSession;

  // For sessions: `session` speaks for `node` from now on; the one before it is ended.
  void TakeOver(const std::string& node, const std::shared_ptr<AgentSession>& session);
  EventCommitter& CommitterOf(const std::string& job_uid) const;
  std::shared_ptr<AgentSession> SessionOf(const std::string& node) const;
  std::vector<std::pair<std::string, std::shared_ptr<AgentSession>>> SomeThatLook() const;
  void EndAll(const absl::Status& status);
  void Forget(const AgentSession& session, const std::string& node);

  FleetStore& store_;
  Wakeups& wakeups_;
  TaskPool& pool_;
  Clock& clock_;
  const FleetOptions options_;
  const bool tells_feeds_;  // there is a listener
  // Each commits for some of the jobs, so that one prepares its group while the store works on that
  // of the other.
  const std::vector<std::shared_ptr<EventCommitter>> committers_;  // shared with tasks of the pool
  const std::shared_ptr<LeaseRenewer> renewer_;                    // likewise
  int64_t subscription_ = 0;

  mutable absl::Mutex mu_;
  std::unordered_map<const AgentSession*, std::shared_ptr<AgentSession>> sessions_
      ABSL_GUARDED_BY(mu_);
  std::unordered_map<std::string, std::shared_ptr<AgentSession>> by_node_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> draining_ ABSL_GUARDED_BY(mu_);
  absl::Status away_ ABSL_GUARDED_BY(mu_);  // why the store is away; OK: it is not
};

}  // namespace trainyard
