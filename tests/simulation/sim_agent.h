#pragma once

// An agent, its workers and its disk, without threads or time of their own: they do something when
// told. The session on the server's side is the real one.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/fleet/agent_link.h"
#include "server/fleet/agent_session.h"
#include "server/fleet/fleet.h"
#include "storage/base/clock.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// What outlives workers and is seen by all of them: files of checkpoints, and how long each job is.
struct SimDisk {
  std::set<std::string> checkpoints;           // URIs
  std::map<std::string, int64_t> total_steps;  // by job uid
  std::vector<std::string> complaints;         // what a worker found wrong
};

// One end of a stream. Lives until the session called Finish.
class SimLink : public AgentLink {
 public:
  void Send(const v1::ServerMessage& message) override { to_agent.push_back(message); }
  void ReadNext() override { wants = true; }
  void Finish(const absl::Status&) override { finished = true; }

  std::deque<v1::ServerMessage> to_agent;
  std::deque<v1::AgentMessage> to_server;
  bool wants = false;
  bool finished = false;
  std::shared_ptr<AgentSession> session;
};

struct SimProcess {
  v1::Assignment assignment;
  bool alive = true;
  bool suspend = false;
  bool dying = false;  // told to be killed; that takes a while
  int phase = 0;       // 0 before Started, 1 before Restored, 2 steps
  int64_t step = 0;
  int64_t checkpoint_step = -1;
  int64_t next_sequence = 1;
  std::deque<v1::RankEvent> spool;  // not acknowledged
  bool exited_written = false;
};

class SimAgent {
 public:
  SimAgent(std::string name, std::vector<v1::Slot> slots, FakeClock& clock, Fleet& fleet,
           SimDisk& disk, absl::Duration self_fence)
      : name_(std::move(name)),
        slots_(std::move(slots)),
        clock_(clock),
        fleet_(fleet),
        disk_(disk),
        self_fence_(self_fence) {}

  const std::string& name() const { return name_; }
  const std::vector<v1::Slot>& slots() const { return slots_; }
  const std::map<RankId, SimProcess>& processes() const { return processes_; }
  bool connected() const { return link_ != nullptr; }
  int64_t moves() const { return moves_; }  // grows whenever a process begins or ends

  void Connect();
  void Disconnect();
  void Deliver();             // one message to the server, when it wants one
  void Act(int most = 1000);  // obeys the next messages of the server
  void SendHeartbeat();
  void SendEvents(int most);
  void Step(const RankId& rank);  // one process does one thing
  void Crash(const RankId& rank, bool with_failure, bool retryable);
  void RestartAgent();                                // kill -9 of the agent: workers live on
  void SetDiskFull(bool full) { disk_full_ = full; }  // it tells so, and begins nothing
  void LosePower();                                   // all processes vanish; the disk stays
  void FenceIfDue();                                  // the watchdogs of agent and workers

 private:
  bool MayRun() const { return clock_.Now() - acked_at_ < self_fence_; }
  void Obey();
  void Acknowledge(const v1::EventAck& ack);
  v1::RankEvent& Append(SimProcess& process);
  void WriteCheckpoint(const RankId& rank, SimProcess& process);
  void Exit(SimProcess& process, int exit_code, int signal, bool lost);

  const std::string name_;
  const std::vector<v1::Slot> slots_;
  FakeClock& clock_;
  Fleet& fleet_;
  SimDisk& disk_;
  bool disk_full_ = false;  // of its own state directory
  const absl::Duration self_fence_;

  int64_t moves_ = 0;
  int incarnation_ = 0;
  SimLink* link_ = nullptr;
  std::vector<std::unique_ptr<SimLink>> links_;  // those that the server still knows
  absl::Time registered_at_ = absl::InfinitePast();
  absl::Time acked_at_ = absl::InfinitePast();  // sending of the newest acknowledged heartbeat
  int64_t next_heartbeat_ = 1;
  std::map<int64_t, absl::Time> heartbeats_;
  v1::DesiredSet desired_set_;  // of this session
  int64_t desired_version_ = 0;
  std::set<RankId> desired_;
  std::map<RankId, SimProcess> processes_;  // run directories
  std::set<RankId> done_;  // directories that were deleted; forgotten once out of the desired set
};

}  // namespace trainyard
