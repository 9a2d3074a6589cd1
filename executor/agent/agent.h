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
#include "executor/agent/file_looks.h"
#include "executor/agent/gpu_monitor.h"
#include "executor/agent/kept_states.h"
#include "executor/agent/lease.h"
#include "executor/agent/link.h"
#include "executor/agent/local_rank.h"
#include "executor/agent/unix_user.h"
#include "executor/agent/warm_workers.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"

namespace trainyard {

struct AgentOptions {
  std::vector<std::string> servers;  // HOST:PORT of each; any will do
  std::string token_file;
  std::optional<std::string> ca_file;  // see Link::Options
  // Of a node that joins the yard, or has joined: it shows the certificate in its state directory,
  // and the token gets it one.
  bool by_certificate = false;
  std::optional<std::string> join_token;
  std::string state_dir;
  WorkerProgram worker;
  int standby = 1;             // warm workers without a device of their own; only with CPU slots
  bool standby_gpus = true;    // and one warm worker for each idle GPU
  v1::Register hello;          // node, slots, address, labels, version
  std::shared_ptr<Nvml> nvml;  // null: no GPUs
  bool kill_workers_on_exit = false;  // also on SIGTERM; SIGINT always kills them
  // On SIGTERM: how long what runs here gets to write a checkpoint or to go on elsewhere; then it
  // is killed. Zero: it is left running for the next agent of this state directory.
  absl::Duration leave_grace = absl::ZeroDuration();
  UserRules users;
  std::string project_environments;  // a folder (project_environment.h); "": none
};

class Agent {
 public:
  Agent(AgentOptions options, Clock& clock);
  ~Agent();

  // Runs until a signal is read from `signal_fd` (a signalfd of SIGTERM and SIGINT): SIGTERM leaves
  // the workers running for the next agent of this state directory (unless kill_workers_on_exit or
  // leave_grace say otherwise), SIGINT and a second SIGTERM kill them all first. Fails at once when
  // another agent uses the state directory.
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
  // Sent when a session begins, so that the server can let ranks that it holds for lost run on.
  std::vector<v1::RankKey> RunningRanks() const;
  void TellAboutOrphans(absl::Duration now) const;
  void FenceIfLate(absl::Duration now);
  void Fence(const std::string& why);  // kills what runs: the agent has no right to run it
  void FinishRanks(absl::Duration now);
  void ReconcileRanks(absl::Duration now);
  void Perform(const Action& action, absl::Duration now);
  absl::StatusOr<std::unique_ptr<LocalRank>> StartRank(const v1::Assignment& assignment);
  // What its worker is told, but for the state in memory.
  absl::StatusOr<run::Orders> OrdersFor(const v1::Assignment& assignment) const;
  std::string PathOf(const v1::Assignment& assignment) const;
  void Refuse(const v1::Assignment& assignment, v1::RankEvent event);
  void SendEvents(absl::Duration now);
  std::set<int> GpusOf(const LocalRank& rank) const;
  // Appends the errors (Xids) that the driver reported of the rank's GPUs to the message of
  // `failure`; waits for them only when the device is at fault.
  void AddXids(const LocalRank& rank, v1::Failure& failure);
  // The errors of the rank's GPUs since the rank began: "the driver reported Xid 79 (…) of GPU 1",
  // or "". `wait`: gives the driver time to report them. Such waits take at most a quarter of the
  // loop's time, however many ranks fail at once, since nobody renews leases meanwhile.
  std::string WhatTheDriverSaid(const LocalRank& rank, bool wait);
  void SendHeartbeat(absl::Duration now);
  void DescribeHealth(v1::NodeHealth& health) const;
  void Tick(absl::Duration now);
  // How many bytes of this machine's memory the state of a job may take between two attempts: half
  // of what is free, times the fraction of this node's slots that the attempt of this rank has. The
  // other half is for the next attempt.
  int64_t RoomForState(const v1::RankKey& of) const;
  // Whether the rank, whose gang broke, is the one of this node that leaves the state: it has said
  // that it has it, and no other one was asked for it before and is still there.
  bool IsKeeper(const v1::RankKey& key) const;
  // What the rank's file keep-state is to hold.
  std::string KeepWish(const v1::Assignment& wanted) const;
  void DropKeptStates(absl::Duration now);
  void ForgetOldRanks();
  bool ForgetRank(const std::string& name);  // deletes its directory, too; true: all of it is gone
  bool ReadyToLeave(absl::Duration now);
  void GiveWorkAway();
  void TellLeave(absl::Duration now);
  void KillEverything();
  const v1::Assignment* FindDesired(const std::string& name) const;
  bool AwaitsFirstStep(absl::Duration now) const;
  std::vector<Standby> WhatWorkersWaitFor() const;
  std::set<std::string> BusyDevices() const;  // GPUs that ranks run on

  const AgentOptions options_;
  const std::string ranks_folder_;
  const std::string looks_folder_;
  Clock& clock_;
  v1::Register hello_;      // options_.hello and this agent's identity
  FileDescriptor lock_;     // of the state directory
  FileDescriptor inotify_;  // on the events.log of ranks that run
  Inbox inbox_;
  std::unique_ptr<WarmWorkers> warm_;
  KeptStates kept_states_;
  absl::Duration next_left_states_;  // when a heartbeat tells of them again
  std::unique_ptr<GpuMonitor> gpus_;
  std::map<std::string, std::unique_ptr<LocalRank>> ranks_;  // by name, retired ones too
  std::set<std::string> troubled_;                           // ranks whose log could not be read
  Lease lease_;
  v1::DesiredSet desired_;
  bool has_desired_ = false;       // a set came since this agent started
  bool desired_is_fresh_ = false;  // it came in the present session
  int64_t reconciled_version_ = 0;
  bool up_ = false;
  bool server_takes_columns_ = false;  // as its Welcome said
  bool server_knows_users_ = false;    // likewise
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
  enum class Leaving { kNo, kLeaveWorkers, kGiveWorkAway, kKillWorkers } leaving_ = Leaving::kNo;
  absl::Duration leave_deadline_ = absl::InfiniteDuration();
  // The heartbeat after the server was told that this node leaves; 0: it was not told yet.
  int64_t leave_beat_ = 0;
  bool leave_known_ = false;          // it was acknowledged, so nothing more is placed here
  std::unique_ptr<Link> link_;        // its thread uses the inbox
  std::unique_ptr<FileLooks> looks_;  // last: its threads use the link; null: it looks at no files
};

}  // namespace trainyard
