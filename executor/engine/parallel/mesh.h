#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/parallel/control_link.h"
#include "executor/engine/parallel/data_link.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// The links of one rank to another, as the rendezvous made them.
struct MeshPeer {
  std::string name;                      // "rank 2 (10.0.0.3:7011)"
  std::unique_ptr<ControlLink> control;  // null, as `data`, for this rank itself
  std::unique_ptr<DataLink> data;
  bool shares_memory = false;
  bool left = false;  // it has said goodbye already
};

struct MeshOptions {
  int rank = 0;
  absl::Duration silence;
  std::optional<absl::Duration> progress_timeout;  // as Rendezvous::progress_timeout
  absl::Duration spin;  // how long to look again and again before sleeping
};

// The communicator over links between any two ranks. `doorbell` is the one that the other ends of
// memory links ring.
std::unique_ptr<Communicator> MakeMesh(MeshOptions options, FileDescriptor doorbell,
                                       std::vector<MeshPeer> peers);

}  // namespace trainyard::engine
