#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/records/node_request.h"

namespace trainyard {

struct NodeRequests {
  // Random, made with the yard: by it an engine that several yards share tells what is whose.
  std::string yard_id;
  std::vector<NodeRequest> requests;  // by node
};

// Those that ended are kept for an hour: with a pool that comes and goes they are the most.
enum class WhichRequests { kLive, kAll };

// Nodes that the yard asked engines for. What the leader writes names its epoch, and fails with
// kAborted when a newer leader exists. Thread-safe. Every method is one transaction.
class ProvisionStore {
 public:
  virtual ~ProvisionStore() = default;

  virtual absl::StatusOr<NodeRequests> ListNodeRequests(WhichRequests which) = 0;

  // Keeps new ones, whose times are set here; one that is known already stays as it is.
  virtual absl::Status AddNodeRequests(int64_t leader_epoch,
                                       const std::vector<NodeRequest>& requests) = 0;

  // Sets state, what the engine calls it and says of it, whether it failed and is proven gone. One
  // that ended, or is not known, is left alone.
  virtual absl::Status UpdateNodeRequests(int64_t leader_epoch,
                                          const std::vector<NodeRequest>& requests) = 0;

  // Those of the nodes on which no rank is, but for LOST ones, are given up: nothing is placed
  // there any more (they drain, also those that register later), and their requests are RELEASING.
  // Returns their names.
  virtual absl::StatusOr<std::vector<std::string>> ReleaseIdleNodes(
      int64_t leader_epoch, const std::vector<std::string>& nodes) = 0;

  // Forgets nodes whose requests ended, once their leases are over and no rank is left there, and
  // requests that ended an hour ago whose nodes are forgotten; with them the keys by which they
  // joined. Returns how many nodes.
  virtual absl::StatusOr<int> ForgetEndedNodes(int64_t leader_epoch) = 0;
};

inline constexpr absl::Duration kEndedRequestsAreKept = absl::Hours(1);

}  // namespace trainyard
