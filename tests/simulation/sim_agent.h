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

// The version of a program: N (today's), or N-1. The two must work together.
enum class SimVersion { kToday, kBefore };

// What outlives workers and is seen by all of them: files of checkpoints, and how long each job is.
struct SimStorage {
  std::set<std::string> checkpoints;             // URIs
  std::map<std::string, int64_t> total_steps;    // by job uid
  std::set<std::string> poisoned;                // jobs whose first step takes the node down
  std::map<std::string, Arithmetic> arithmetic;  // by node; none: it is not told
  // States in the memory of nodes, by job uid: what the newest attempt that left one left.
  struct Kept {
    std::string node;
    int64_t attempt = 0, step = 0;
  };
  std::map<std::string, Kept> kept;
  std::set<std::pair<std::string, int64_t>> freed;  // by job uid and attempt: nobody needs them
  int64_t left_alone = 0;                           // ranks that left the state of a broken gang
  std::map<std::pair<std::string, int64_t>, int64_t> begins;  // step, by job uid and attempt
  std::set<RankId> begun;  // ranks that ever began: none may begin twice, on any node
  std::function<bool(const RankId&)> is_lost;  // whether a rank is LOST in the store
  std::vector<std::string> complaints;         // what a worker found or did wrong
};

// The stream between an agent and a session. Lives until the session called Finish, or its server
// is gone.
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
  bool welcomed = false;  // the agent received its Welcome
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
  bool keep = false;   // its state in memory, when it is suspended
  bool alone = false;  // likewise, since its gang broke
  bool dying = false;  // is being killed: ends when it is stepped next
  int phase = 0;       // 0 before Started, 1 before Restored, 2 steps
  int64_t step = 0;
  int64_t checkpoint_step = -1;
  int64_t next_sequence = 1;
  absl::Duration right_until;       // until when it may make checkpoints visible, machine's clock
  std::deque<v1::RankEvent> spool;  // events that are not acknowledged yet
  std::optional<v1::RankEvent::Exited> owed;  // its end, while a full disk does not take it
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
  // Processes of state directories that are gone (Wipe), on the same machine.
  const std::map<RankId, SimProcess>& ghosts() const { return ghosts_; }
  SimVersion version() const { return version_; }
  // Whether the store knows the secret that proves its identity: from then on no other agent gets
  // its name.
  bool proven() const { return proven_; }
  bool connected() const { return link_ != nullptr; }
  int64_t refusals() const { return refusals_; }  // because another agent had its name
  int64_t moves() const { return moves_; }        // grows whenever a process begins or ends

  // Starts the agent if it does not run, and begins a session with this server.
  void Connect(Fleet& fleet, SimVersion server);
  void Disconnect();
  void CutFrom(const Fleet& fleet);  // ends its streams to `fleet`, whose server is gone
  void Deliver();                    // one message to the server, when it wants one
  void Act(int most = 1000);         // obeys the next messages of the server
  void SendHeartbeat();
  void Leave(absl::Duration grace);  // tells that it does; what it then does is drawn, as always
  void SendEvents(int most);
  void Step(const RankId& rank);  // one process does one thing
  void Crash(const RankId& rank, bool with_failure, bool retryable);
  void Stop();       // kill -9 of the agent: its workers live on for a lease
  void LosePower();  // all processes vanish; the disk stays
  // Its state directory is moved away, and with it its identity. Its workers would end by
  // themselves soon, but these were stopped (SIGSTOP): they live on for `stopped`, and no agent
  // reports them.
  void Wipe(absl::Duration stopped);
  void Upgrade() {
    Stop();
    version_ = SimVersion::kToday;
  }
  // Full: nothing begins here, no event is written, and the next heartbeat says so.
  void SetDiskFull(bool full);
  void SetStuck(bool stuck) { stuck_ = stuck; }  // it starts no rank and does not report that
  void SetSick(bool sick) { sick_ = sick; }      // its device fails now and then
  bool sick() const { return sick_; }
  void GoDown(absl::Duration time);  // loses power, and is not back before that
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
  // From which step a rank goes on: its gang has agreed on one.
  int64_t BeginOf(const RankId& rank, const SimProcess& process);
  void LoseMemory();  // what is kept there with it
  void Finish(const RankId& rank, SimProcess& process, int64_t total);
  // What a rank does that has the whole state and is told that its gang broke.
  void LeaveAlone(const RankId& rank, SimProcess& process);
  void AppendLoss(SimProcess& process, int64_t step);
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
  absl::Duration alone_until_;  // until when its workers live while it does not run
  SimLink* link_ = nullptr;
  std::vector<std::unique_ptr<SimLink>> links_;  // those that a server still knows
  absl::Duration registered_at_;
  Lease lease_;
  bool proven_ = false;
  bool takes_columns_ = false;
  v1::DesiredSet desired_set_;  // of this session
  int64_t desired_version_ = 0;
  std::set<RankId> desired_;
  std::map<RankId, SimProcess> processes_;  // one for each run directory
  std::map<RankId, SimProcess> ghosts_;
  absl::Duration ghosts_until_;  // on its machine's clock
  std::set<RankId> done_;        // ranks whose directory was deleted; forgotten once not desired
};

}  // namespace trainyard
