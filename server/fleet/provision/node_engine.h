#pragma once

// What makes nodes: Slurm, and what else comes.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/fleet/provision/pools.h"

namespace trainyard {

// What an engine has under the name of a node. It may have several, if an answer was lost.
struct Allocation {
  std::string node;
  std::string id;       // for Release
  std::string machine;  // that it ran on; empty: none, or several
  std::string words;    // "Slurm PENDING (Resources)"
  enum class State { kWaits, kRuns, kOver };
  State state = State::kWaits;
  bool stuck = false;  // it waits, and will as long as nobody does something about it
  absl::Duration ran = absl::ZeroDuration();  // since the engine started it
  bool proven_gone = false;                   // of one that is over: no process of it is left
};

// Calls may take seconds, and fail with what the engine said. Each may be repeated. Used by one
// thread.
class NodeEngine {
 public:
  virtual ~NodeEngine() = default;

  // Has the engine make nodes of one ask of the pool: those with these names
  // (storage/records/node_request.h). Returns what it calls them, an id for each. Once it fails it
  // is not known whether the engine has heard.
  virtual absl::StatusOr<std::vector<std::string>> Ensure(const Pool& pool, const std::string& ask,
                                                          const std::vector<int>& indices) = 0;

  // All that the engine has of this yard, and what ended a short time ago.
  virtual absl::StatusOr<std::vector<Allocation>> List() = 0;

  // Ends these, by their ids; what is over already is no error.
  virtual absl::Status Release(const std::vector<std::string>& ids) = 0;
};

}  // namespace trainyard
