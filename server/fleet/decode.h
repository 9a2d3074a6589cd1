#pragma once

// What agents send, checked field by field: an agent, and the worker behind it, may be broken or
// hostile. Pure.

#include <vector>

#include "absl/status/statusor.h"
#include "storage/fleet_store.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// The versions of the protocol that one side speaks, from the oldest to the newest.
struct ProtocolRange {
  int oldest = v1::PROTOCOL_VERSION_OLDEST;
  int newest = v1::PROTOCOL_VERSION_NEWEST;
};

// The newest version that the agent and `ours` both speak. kFailedPrecondition: there is none; says
// whose program is the older one.
absl::StatusOr<int> AgreeOnProtocol(const v1::Register& message, ProtocolRange ours = {});

// The node's uid is a digest of its secret. kInvalidArgument names the field; kFailedPrecondition:
// no version of the protocol is spoken by both.
absl::StatusOr<NodeRecord> DecodeRegister(const v1::Register& message);

// Of a JoinRequest with a token: who wants to join. kInvalidArgument names the field.
struct JoinerIdentity {
  std::string node;
  std::string node_uid;
};
absl::StatusOr<JoinerIdentity> DecodeJoin(const v1::JoinRequest& request);

// Usage in the order of slots. A driver may say anything: numbers that make no sense are 0.
NodeReport DecodeReport(const v1::Heartbeat& heartbeat);

// kInvalidArgument when the key cannot name a rank.
absl::StatusOr<RankId> DecodeRankKey(const v1::RankKey& key);

// Decodes the events of one rank. The store checks whether their sequences follow what it has.
//
// An event whose content is wrong is the worker's doing: it becomes a Failure (INTERNAL, not
// retryable) that names the field, in the place of the event, and what follows it in the batch is
// left out. A checkpoint must lie where the server told the job to put it, below `checkpoint_root`
// (that failure is retryable: the root may have been moved while the worker ran). The job thereby
// ends with that message, instead of its agent trying for ever to deliver the event.
std::vector<RankEventRecord> DecodeEvents(const v1::EventBatch& batch,
                                          const std::string& checkpoint_root);

}  // namespace trainyard
