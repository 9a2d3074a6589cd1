#pragma once

// One rendezvous in progress: Meet of rendezvous.h.

#include <array>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/engine/parallel/approach.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/parallel/control_link.h"
#include "executor/engine/parallel/handover.h"
#include "executor/engine/parallel/handshake.h"
#include "executor/engine/parallel/memory_pairing.h"
#include "executor/engine/parallel/mesh.h"
#include "executor/engine/parallel/rendezvous.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// Connects to the ranks below this one, listens for those above, agrees with each on shared memory,
// and waits until all ranks have done the same. One thread, one loop around poll.
class Gathering {
 public:
  explicit Gathering(Rendezvous rendezvous);

  // Call once.
  absl::StatusOr<std::unique_ptr<Communicator>> Run();

 private:
  using Time = Approach::Time;

  // A connection that is authenticated.
  struct Connection {
    FileDescriptor socket;
    Session session;
  };
  // Another rank; that of this rank itself stays empty.
  struct Peer {
    std::string name;
    std::unique_ptr<ControlLink> control;
    std::optional<Connection> data;
    Digest pairing_key = {};
    MemoryPairing memory;
    bool ready = false;
    bool left = false;
    bool told = false;  // why the rendezvous failed
    // Attempts to reach a rank below this one, by purpose: how many there were, whether a handshake
    // is under way, when to try again, and how long to wait after that.
    struct Attempt {
      int number = 0;
      bool under_way = false;
      Time again;
      std::chrono::milliseconds pause{10};
    };
    std::array<Attempt, kPurposes> attempts;
    std::string trouble;  // why the last attempt failed
  };

  absl::Status Check() const;
  absl::Status Open();
  absl::Status Gather();
  absl::Status DeadlineError() const;
  bool all_ready() const;
  void Wait();
  absl::Status Connect(Time now);
  void Accept(Time now);
  absl::Status AdvanceApproaches(Time now);
  absl::Status ApproachFailed(const Approach& approach, const absl::Status& status, Time now);
  void Met(Approach& approach);
  absl::Status ReadControl(int rank);
  void TakeParcels();
  void SayReady();
  // Why this rank gives up; also to ranks that come within the next second.
  void TellAll(const absl::Status& why);
  absl::StatusOr<std::unique_ptr<Communicator>> Finish();

  const Rendezvous rendezvous_;
  FileDescriptor listener_;
  const Identity self_;
  const int size_;
  Time deadline_;
  FileDescriptor doorbell_;
  std::optional<Handover> handover_;  // none: no memory is shared
  std::vector<Peer> peers_;
  std::list<Approach> approaches_;
  int without_secret_ = 0;  // connections that were refused
  bool said_ready_ = false;
};

}  // namespace trainyard::engine
