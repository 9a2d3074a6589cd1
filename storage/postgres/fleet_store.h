#pragma once

#include <string>
#include <vector>

#include "storage/fleet_store.h"
#include "storage/postgres/database.h"

namespace trainyard::postgres {

class PostgresFleetStore : public FleetStore {
 public:
  // Leases are renewed over `heartbeats`, and all other calls of agents go over `agents`: no lease
  // waits behind queries of users or reports of ranks.
  PostgresFleetStore(Database& heartbeats, Database& agents, Database& database)
      : heartbeats_(heartbeats), agents_(agents), database_(database) {}

  absl::StatusOr<NodeRecord> RegisterNode(const NodeRecord& node, absl::Duration lease) override;
  std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) override;
  absl::StatusOr<std::vector<DesiredRank>> ReadDesired(const AgentIdentity& agent) override;
  absl::StatusOr<AppendResult> AppendEvents(const RankEvents& report) override;
  std::vector<absl::StatusOr<AppendResult>> AppendGroup(
      const std::vector<RankEvents>& group) override;
  absl::StatusOr<bool> ReportAbsent(const AgentIdentity& agent,
                                    const std::vector<RankId>& ranks) override;
  absl::StatusOr<int> ConfirmEmpty(const std::string& node) override;
  absl::StatusOr<NodeRanks> ReadRanks(const std::string& node) override;
  absl::StatusOr<std::vector<LeftState>> FindUnneeded(
      const std::vector<LeftState>& states) override;
  absl::StatusOr<std::vector<NodeRecord>> ListNodes() override;
  absl::StatusOr<NodeRecord> SetDraining(const std::string& node, bool draining) override;
  absl::Status SetLeaving(const AgentIdentity& agent, absl::Duration grace) override;
  absl::StatusOr<RankRecord> FindRank(const std::string& job_uid, int64_t attempt,
                                      int rank) override;
  absl::StatusOr<AttemptRecord> FindAttempt(const std::string& job_uid, int64_t attempt) override;
  absl::StatusOr<std::vector<AttemptRecord>> ListAttempts(const std::string& job_uid) override;

 private:
  Database& heartbeats_;
  Database& agents_;
  Database& database_;
};

}  // namespace trainyard::postgres
