#pragma once

// An agent, its workers and its disk, without threads or time of their own: they do something when
// told. The session on the server's side is the real one, and so are the agent's lease and the
// columns that it packs metrics into.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "executor/agent/lease.h"
#include "server/fleet/agent_link.h"
#include "server/fleet/agent_session.h"
#include "server/fleet/fleet.h"
#include "tests/simulation/sim_clock.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// Of the two that work together: N, or N-1.
enum class SimVersion { kToday, kBefore };

// What outlives workers and is seen by all of them: files of checkpoints, and how long each job is.
struct SimStorage {
  std::set<std::string> checkpoints;           // URIs
  std::map<std::string, int64_t> total_steps;  // by job uid
  std::set<std::string> poisoned;              // jobs whose first step takes the node down
  std::set<RankId> begun;                      // a rank of an attempt begins once, wherever
  std::function<bool(const RankId&)> is_lost;  // whether the store says so of a rank
  std::vector<std::string> complaints;         // what a worker found or did wrong
};

// One end of a stream. Lives until the session called Finish, or its server is gone.
class SimLink : public AgentLink {
 public:
  SimLink(const Fleet* fleet, SimVersion server) : fleet_(fleet), server_(server) {}
  void Send(const v1::ServerMessage& message) override;
  void ReadNext() override { wants = true; }
  void Finish(const absl::Status& why) override {
    finished = true;
    status = why;
  }
  const Fleet* fleet() const { return fleet_; }

  std::deque<v1::ServerMessage> to_agent;
  std::deque<v1::AgentMessage> to_server;
  bool wants = false;
  bool welcomed = false;  // the agent was
  bool finished = false;
  absl::Status status;
  std::shared_ptr<AgentSession> session;  // shared with the fleet, which ends it

 private:
  const Fleet* fleet_;
  const SimVersion server_;
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
  absl::Duration right_until;       // to make a checkpoint visible, on its machine's clock
  std::deque<v1::RankEvent> spool;  // not acknowledged
  std::optional<v1::RankEvent::Exited> owed;  // its end, which the full disk does not take
  bool exited_written = false;
};

class SimAgent {
 public:
  // `number` tells agents of one name apart.
  SimAgent(std::string name, int number, std::vector<v1::Slot> slots, SimVersion version,
           const SimClock& clock, SimStorage& storage)
      : name_(std::move(name)),
        number_(number),
        slots_(std::move(slots)),
        version_(version),
        clock_(clock),
        storage_(storage) {}

  const std::string& name() const { return name_; }
  const std::vector<v1::Slot>& slots() const { return slots_; }
  const std::map<RankId, SimProcess>& processes() const { return processes_; }
  // Of the state directories that are gone, on the same machine.
  const std::map<RankId, SimProcess>& ghosts() const { return ghosts_; }
  SimVersion version() const { return version_; }
  // The store knows by what it proves who it is: from then on its name is its own.
  bool proven() const { return proven_; }
  bool connected() const { return link_ != nullptr; }
  int64_t refusals() const { return refusals_; }  // how often its name was another agent's
  int64_t moves() const { return moves_; }        // grows whenever a process begins or ends

  // Starts it if it does not run. A session begins with this server.
  void Connect(Fleet& fleet, SimVersion server);
  void Disconnect();
  void CutFrom(const Fleet& fleet);  // which is gone and hears of nothing any more
  void Deliver();                    // one message to the server, when it wants one
  void Act(int most = 1000);         // obeys the next messages of the server
  void SendHeartbeat();
  void SendEvents(int most);
  void Step(const RankId& rank);  // one process does one thing
  void Crash(const RankId& rank, bool with_failure, bool retryable);
  void Stop();       // kill -9 of the agent: its workers live on for a lease
  void LosePower();  // all processes vanish; the disk stays
  // Its state directory is moved away, and with it who it was. Its workers end soon by themselves,
  // but for those that were stopped: they live on for `stopped`, and nobody tells of them.
  void Wipe(absl::Duration stopped);
  void Upgrade() {
    Stop();
    version_ = SimVersion::kToday;
  }
  // Full: nothing begins here, no event is written, and the next heartbeat says so.
  void SetDiskFull(bool full);
  void SetStuck(bool stuck) { stuck_ = stuck; }  // it begins nothing and says nothing of it
  void SetSick(bool sick) { sick_ = sick; }      // its device fails now and then
  bool sick() const { return sick_; }
  void GoDown(absl::Duration time);  // loses power, and is back no earlier
  void FenceIfDue();                 // the watchdogs of agent and workers

 private:
  bool HoldsLease() { return lease_.HoldsAt(clock_.SinceBoot()); }
  void TakeWelcome(v1::Welcome welcome);
  void RenewRights();
  void Obey();
  bool MayStart(const v1::Assignment& assignment);
  void Acknowledge(const v1::EventAck& ack);
  v1::RankEvent& Append(SimProcess& process);
  bool HasRight(const SimProcess& process) { return clock_.SinceBoot() < process.right_until; }
  void WriteCheckpoint(const RankId& rank, SimProcess& process);
  void Finish(const RankId& rank, SimProcess& process, int64_t total);
  void Exit(SimProcess& process, int exit_code, int signal, bool lost);
  void RecordEnd(SimProcess& process);
  void FenceAll();

  const std::string name_;
  const int number_;
  const std::vector<v1::Slot> slots_;
  SimVersion version_;
  mutable SimClock clock_;  // of its machine
  SimStorage& storage_;
  bool stuck_ = false;
  bool sick_ = false;
  absl::Duration down_until_;  // on its machine's clock
  bool disk_full_ = false;     // that of its own state directory

  int64_t moves_ = 0;
  int64_t refusals_ = 0;
  int starts_ = 0;
  int boots_ = 0;
  int directories_ = 0;
  bool running_ = true;
  absl::Duration alone_until_;  // what a worker whose agent is gone lives
  SimLink* link_ = nullptr;
  std::vector<std::unique_ptr<SimLink>> links_;  // those that a server still knows
  absl::Duration registered_at_;
  Lease lease_;
  bool proven_ = false;
  bool takes_columns_ = false;
  v1::DesiredSet desired_set_;  // of this session
  int64_t desired_version_ = 0;
  std::set<RankId> desired_;
  std::map<RankId, SimProcess> processes_;  // run directories
  std::map<RankId, SimProcess> ghosts_;
  absl::Duration ghosts_until_;  // on its machine's clock
  std::set<RankId> done_;  // directories that were deleted; forgotten once out of the desired set
};

}  // namespace trainyard
