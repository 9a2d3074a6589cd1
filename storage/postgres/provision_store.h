#pragma once

#include <optional>
#include <string>
#include <vector>

#include "storage/postgres/database.h"
#include "storage/provision_store.h"

namespace trainyard::postgres {

// The request for a node of this name, if there is one.
std::optional<NodeRequest> FindNodeRequest(Transaction& transaction, const std::string& node);

// Whether the yard has given up the node of this name; whoever does so now waits for the end of the
// transaction.
bool IsGivenUp(Transaction& transaction, const std::string& node);

class PostgresProvisionStore : public ProvisionStore {
 public:
  explicit PostgresProvisionStore(Database& database) : database_(database) {}

  absl::StatusOr<NodeRequests> ListNodeRequests(WhichRequests which) override;
  absl::Status AddNodeRequests(int64_t leader_epoch,
                               const std::vector<NodeRequest>& requests) override;
  absl::Status UpdateNodeRequests(int64_t leader_epoch,
                                  const std::vector<NodeRequest>& requests) override;
  absl::StatusOr<std::vector<std::string>> ReleaseIdleNodes(
      int64_t leader_epoch, const std::vector<std::string>& nodes) override;
  absl::StatusOr<int> ForgetEndedNodes(int64_t leader_epoch) override;

 private:
  Database& database_;
};

}  // namespace trainyard::postgres
