#pragma once

#include <string>
#include <vector>

#include "storage/fleet_store.h"

namespace trainyard {

// Answers every call with kUnimplemented: a test overrides those that it is about.
class RefusingFleetStore : public FleetStore {
 public:
  absl::StatusOr<NodeRecord> RegisterNode(const NodeRecord&, absl::Duration) override {
    return No();
  }
  std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) override {
    return std::vector<absl::Status>(renewals.size(), No());
  }
  absl::StatusOr<std::vector<DesiredRank>> ReadDesired(const AgentIdentity&) override {
    return No();
  }
  absl::StatusOr<AppendResult> AppendEvents(const RankEvents&) override { return No(); }
  absl::StatusOr<bool> ReportAbsent(const AgentIdentity&, const std::vector<RankId>&) override {
    return No();
  }
  absl::StatusOr<int> ConfirmEmpty(const std::string&) override { return No(); }
  absl::StatusOr<NodeRanks> ReadRanks(const std::string&) override { return No(); }
  absl::StatusOr<std::vector<LeftState>> FindUnneeded(const std::vector<LeftState>&) override {
    return No();
  }
  absl::StatusOr<std::vector<NodeRecord>> ListNodes() override { return No(); }
  absl::StatusOr<NodeRecord> SetDraining(const std::string&, bool) override { return No(); }
  absl::Status SetLeaving(const AgentIdentity&, absl::Duration) override { return No(); }
  absl::StatusOr<RankRecord> FindRank(const std::string&, int64_t, int) override { return No(); }
  absl::StatusOr<AttemptRecord> FindAttempt(const std::string&, int64_t) override { return No(); }
  absl::StatusOr<std::vector<AttemptRecord>> ListAttempts(const std::string&) override {
    return No();
  }

 private:
  static absl::Status No() { return absl::UnimplementedError("not for this test"); }
};

}  // namespace trainyard
