#pragma once

// The executor's daemon on a node: one loop over what the server wants, what runs here, and the
// clock. Decisions are in reconcile.h, lease.h and retention.h; this applies them.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "executor/agent/gpu_monitor.h"
#include "executor/agent/lease.h"
#include "executor/agent/link.h"
#include "executor/agent/local_rank.h"
#include "executor/agent/retention.h"
#include "executor/agent/warm_workers.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"

namespace trainyard {

struct AgentOptions {
  std::vector<std::string> servers;  // HOST:PORT of each; any will do
  std::string token_file;
  std::string state_dir;
  std::string worker;                    // program
  int standby = 1;                       // warm workers that wait for anything, with CPU slots
  bool standby_gpus = true;              // and one for each idle GPU
  v1::Register hello;                    // node, slots, address, labels, version
  std::shared_ptr<Nvml> nvml;            // null: no GPUs
  bool kill_workers_on_exit = false;     // on SIGTERM too
  int64_t log_bytes = int64_t{4} << 20;  // per file; two files per rank
  RetentionLimits retention;
};

class Agent {
 public:
  Agent(AgentOptions options, Clock& clock);
  ~Agent();

  // Runs until a signal is read from `signal_fd` (a signalfd of SIGTERM and SIGINT): SIGTERM leaves
  // the workers running for the next agent of this state directory (unless kill_workers_on_exit),
  // SIGINT kills them all first. Fails at once when another agent uses the state directory.
  absl::Status Run(int signal_fd);

 private:
  // Messages from the link's thread to the loop.
  class Inbox {
   public:
    Inbox();
    void Put(LinkEvent event);
    std::deque<LinkEvent> TakeAll();
    int fd() const { return fd_.get(); }

   private:
    FileDescriptor fd_;
    absl::Mutex mu_;
    std::deque<LinkEvent> events_ ABSL_GUARDED_BY(mu_);
  };

  absl::Status SetUp();
  absl::Status AdoptRanks();
  void WatchEvents(const LocalRank& rank);

  absl::Duration Wait(int signal_fd);  // returns the time after waiting
  absl::Duration NextDeadline(absl::Duration now) const;
  void ReadSignal(int signal_fd);

  void HandleInbox();
  void HandleMessage(const v1::ServerMessage& message);
  void HandleAck(const v1::EventAck& ack);
  void HandleLogRequest(const v1::LogRequest& request);
  void RenewLeases();
  // For sessions that begin, so that the server can have them run on though they were lost.
  std::vector<v1::RankKey> RunningRanks() const;
  void TellAboutOrphans(absl::Duration now) const;
  void FenceIfLate(absl::Duration now);
  void Fence(const std::string& why);  // kills what runs: the agent has no right to run it
  void FinishRanks(absl::Duration now);
  void ReconcileRanks(absl::Duration now);
  void Perform(const Action& action, absl::Duration now);
  absl::StatusOr<std::unique_ptr<LocalRank>> StartRank(const v1::Assignment& assignment);
  std::string PathOf(const v1::Assignment& assignment) const;
  void Refuse(const v1::Assignment& assignment, v1::RankEvent event);
  void SendEvents(absl::Duration now);
  std::set<int> GpusOf(const LocalRank& rank) const;
  // A fault of a GPU is told with what its driver said of it.
  void AddXids(const LocalRank& rank, v1::Failure& failure);
  // "the driver reported Xid 79 (…) of GPU 1", or "": of its GPUs, since it began. `wait`: for the
  // driver to say so, at most a quarter of the time, however many ranks fail at once: leases are
  // renewed meanwhile by nobody.
  std::string WhatTheDriverSaid(const LocalRank& rank, bool wait);
  void SendHeartbeat(absl::Duration now);
  void DescribeHealth(v1::NodeHealth& health) const;
  void Tick(absl::Duration now);
  void ForgetOldRanks();
  bool ForgetRank(const std::string& name);  // and its directory: whether all of that is gone
  bool ReadyToLeave(absl::Duration now);
  void KillEverything();
  const v1::Assignment* FindDesired(const std::string& name) const;
  bool AwaitsFirstStep(absl::Duration now) const;
  std::vector<Standby> WhatWorkersWaitFor() const;
  std::set<std::string> BusyDevices() const;  // GPUs

  const AgentOptions options_;
  const std::string ranks_folder_;
  Clock& clock_;
  v1::Register hello_;      // with who this agent is
  FileDescriptor lock_;     // of the state directory
  FileDescriptor inotify_;  // on the events.log of ranks that run
  Inbox inbox_;
  std::unique_ptr<WarmWorkers> warm_;
  std::unique_ptr<GpuMonitor> gpus_;
  std::map<std::string, std::unique_ptr<LocalRank>> ranks_;  // by name, retired ones too
  std::set<std::string> troubled_;                           // ranks whose log could not be read
  Lease lease_;
  v1::DesiredSet desired_;
  bool has_desired_ = false;       // since the start of this agent
  bool desired_is_fresh_ = false;  // of this session
  int64_t reconciled_version_ = 0;
  bool up_ = false;
  bool server_takes_columns_ = false;  // as its Welcome said
  bool fenced_ = false;
  bool orphaned_ = true;  // the lease does not hold
  bool reconcile_due_ = false;
  bool heartbeat_due_ = false;
  int64_t failed_starts_ = 0;
  int64_t failed_writes_ = 0;
  absl::Duration next_heartbeat_ = absl::ZeroDuration();
  absl::Duration next_tick_ = absl::ZeroDuration();
  absl::Duration next_record_ = absl::ZeroDuration();
  absl::Duration next_start_ = absl::ZeroDuration();
  absl::Duration next_cleaning_ = absl::ZeroDuration();
  absl::Duration next_driver_wait_ = absl::ZeroDuration();
  absl::Duration last_progress_ = absl::ZeroDuration();  // events were sent or acknowledged
  enum class Leaving { kNo, kLeaveWorkers, kKillWorkers } leaving_ = Leaving::kNo;
  absl::Duration leave_deadline_ = absl::InfiniteDuration();
  std::unique_ptr<Link> link_;  // last: its thread uses the inbox
};

}  // namespace trainyard
