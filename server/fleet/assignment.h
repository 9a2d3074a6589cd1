#pragma once

// What a node is told to run. Pure.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fleet_store.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// Where checkpoints of a job go: {root}/{project}/{job_id}-{first 8 of uid}.
std::string CheckpointRootOf(const JobRecord& job, const std::string& root);

// The key by which server and agent name a rank, its claim included.
v1::RankKey EncodeRankKey(const RankRecord& rank);

// host:port by which a rank on slot `slot` of a node is reached. `address` is what the node says:
// HOST:PORT, of which slot I listens at PORT + I; or HOST, as older agents say, for ports from
// 29400 on. An IPv6 host with a port stands in brackets. kInvalidArgument: that is no port.
absl::StatusOr<std::string> RankAddress(absl::string_view address, int64_t slot);

// What the ranks of an attempt prove to one another that they belong to it: made from the claims to
// all of them, of which an agent knows only its own.
std::string RendezvousSecret(const AttemptRecord& attempt);

// `now` on the store's clock, for what is left of a suspension's grace. `lease`: of agents.
// kInternal: the stored spec cannot be read.
absl::StatusOr<v1::Assignment> MakeAssignment(const DesiredRank& desired, const std::string& root,
                                              absl::Time now,
                                              absl::Duration lease = absl::Seconds(10));

// Equal for two desired sets exactly when an agent need not be told again. (Time that passes
// changes grace_ms but not this.)
std::string DesiredFingerprint(const std::vector<DesiredRank>& desired);

}  // namespace trainyard
