#include "storage/postgres/provision_store.h"

#include <pqxx/pqxx>

#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/writes.h"

namespace trainyard::postgres {
namespace {

NodeRequest NodeRequestOf(const pqxx::row& row) {
  return {.node = row["node"].as<std::string>(),
          .pool = row["pool"].as<std::string>(),
          .state = NodeRequestStateOf(row["state"].as<std::string>()),
          .engine_id = row["engine_id"].as<std::string>(),
          .engine_words = row["engine_words"].as<std::string>(),
          .why = row["why"].as<std::string>(),
          .failed = row["failed"].as<bool>(),
          .proven_gone = row["proven_gone"].as<bool>(),
          .create_time = absl::FromUnixMicros(row["create_time"].as<int64_t>()),
          .change_time = absl::FromUnixMicros(row["change_time"].as<int64_t>())};
}

}  // namespace

std::optional<NodeRequest> FindNodeRequest(Transaction& transaction, const std::string& node) {
  const pqxx::result rows = transaction.Run(kFindNodeRequest, Params(node));
  if (rows.empty()) return std::nullopt;
  return NodeRequestOf(rows[0]);
}

bool IsGivenUp(Transaction& transaction, const std::string& node) {
  const pqxx::result rows = transaction.Run(kHoldNodeRequest, Params(node));
  return !rows.empty() && rows[0]["given_up"].as<bool>();
}

absl::StatusOr<NodeRequests> PostgresProvisionStore::ListNodeRequests(WhichRequests which) {
  const Query& query = which == WhichRequests::kAll ? kListNodeRequests : kListLiveNodeRequests;
  return database_.Run("list node requests",
                       [&](Transaction& transaction) -> absl::StatusOr<NodeRequests> {
                         NodeRequests all;
                         all.yard_id = transaction.Run(kReadYard, Params())[0][0].as<std::string>();
                         for (const pqxx::row& row : transaction.Run(query, Params())) {
                           all.requests.push_back(NodeRequestOf(row));
                         }
                         return all;
                       });
}

absl::Status PostgresProvisionStore::AddNodeRequests(int64_t leader_epoch,
                                                     const std::vector<NodeRequest>& requests) {
  std::vector<std::string> nodes, pools, reasons;
  for (const NodeRequest& request : requests) {
    nodes.push_back(request.node);
    pools.push_back(request.pool);
    reasons.push_back(request.why);
  }
  return database_.Run("add node requests", [&](Transaction& transaction) -> absl::Status {
    TY_RETURN_IF_ERROR(LockLeader(transaction, leader_epoch));
    transaction.Run(kAddNodeRequests, Params(nodes, pools, reasons));
    return absl::OkStatus();
  });
}

absl::Status PostgresProvisionStore::UpdateNodeRequests(int64_t leader_epoch,
                                                        const std::vector<NodeRequest>& requests) {
  std::vector<std::string> nodes, states, ids, words, failed, proven;
  for (const NodeRequest& request : requests) {
    nodes.push_back(request.node);
    states.push_back(ToString(request.state));
    ids.push_back(request.engine_id);
    words.push_back(request.engine_words);
    failed.push_back(request.failed ? "true" : "false");
    proven.push_back(request.proven_gone ? "true" : "false");
  }
  return database_.Run("update node requests", [&](Transaction& transaction) -> absl::Status {
    TY_RETURN_IF_ERROR(LockLeader(transaction, leader_epoch));
    transaction.Run(kUpdateNodeRequests, Params(nodes, states, ids, words, failed, proven));
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<std::string>> PostgresProvisionStore::ReleaseIdleNodes(
    int64_t leader_epoch, const std::vector<std::string>& nodes) {
  using Names = std::vector<std::string>;
  const auto release = [&](Transaction& transaction) -> absl::StatusOr<Names> {
    TY_RETURN_IF_ERROR(LockLeader(transaction, leader_epoch));
    Names released;
    for (const pqxx::row& row : transaction.Run(kReleaseIdleNodes, Params(nodes))) {
      released.push_back(row[0].as<std::string>());
    }
    if (!released.empty()) transaction.Run(kDrainNodes, Params(released));
    return released;
  };
  return database_.Run("release idle nodes", release);
}

absl::StatusOr<int> PostgresProvisionStore::ForgetEndedNodes(int64_t leader_epoch) {
  const auto forget_nodes = [&](Transaction& transaction) -> absl::StatusOr<int> {
    TY_RETURN_IF_ERROR(LockLeader(transaction, leader_epoch));
    return static_cast<int>(transaction.Run(kForgetEndedNodes, Params()).size());
  };
  const auto forget_requests = [&](Transaction& transaction) -> absl::Status {
    TY_RETURN_IF_ERROR(LockLeader(transaction, leader_epoch));
    transaction.Run(kForgetEndedKeys, Params());
    transaction.Run(kForgetEndedRequests, Params(kEndedRequestsAreKept));
    return absl::OkStatus();
  };
  TY_ASSIGN_OR_RETURN(const int gone, database_.Run("forget ended nodes", forget_nodes));
  TY_RETURN_IF_ERROR(database_.Run("forget ended requests", forget_requests));
  return gone;
}

}  // namespace trainyard::postgres
