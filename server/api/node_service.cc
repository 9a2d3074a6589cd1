#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/pool_calls.h"
#include "server/api/services.h"
#include "server/api/unary_call.h"
#include "storage/base/status.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

constexpr absl::Duration kJoinTokenValid = absl::Hours(1);

v1::JoinToken ToProto(const JoinToken& token) {
  v1::JoinToken out;
  out.set_name(absl::StrCat("joinTokens/", token.id));
  out.set_pool(token.pool);
  out.set_creator(token.creator);
  out.set_most_joins(token.most_joins);
  out.set_joins(token.joins);
  SetTimestamp(token.create_time, *out.mutable_create_time());
  SetTimestamp(token.expire_time, *out.mutable_expire_time());
  if (token.revoke_time != absl::InfiniteFuture()) {
    SetTimestamp(token.revoke_time, *out.mutable_revoke_time());
  }
  return out;
}

// Takes out what is of other projects than the principal's.
void HideOthers(const Principal& by, v1::Node& node) {
  if (by.project.empty()) return;
  for (v1::Slot& slot : *node.mutable_slots()) {
    if (!CheckProject(by, slot.job()).ok()) slot.set_job("projects/-/jobs/-");
  }
  // These name jobs without their projects.
  node.clear_failures();
  node.clear_lost_ranks();
  if (!node.cordon_reason().empty())
    node.set_cordon_reason("jobs that ran there failed, or its disk is full");
}

class NodeService final : public v1::NodeService::CallbackService {
 public:
  explicit NodeService(const ServiceDependencies& dependencies) : b_(dependencies) {}

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override {
    return RunCall(b_, Permission::kReadNodes, context, request,
                   [=, this](const Principal& by) { return List(*request, by, response); });
  }
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context,
                                    const v1::GetNodeRequest* request,
                                    v1::Node* response) override {
    return RunCall(b_, Permission::kReadNodes, context, request,
                   [=, this](const Principal& by) -> absl::Status {
                     TY_ASSIGN_OR_RETURN(const std::string node,
                                         ParseNodeName("name", request->name()));
                     TY_RETURN_IF_ERROR(Find(node, response));
                     HideOthers(by, *response);
                     return absl::OkStatus();
                   });
  }
  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context,
                                      const v1::DrainNodeRequest* request,
                                      v1::Node* response) override {
    return RunCall(b_, Permission::kWriteNodes, context, request, [=, this](const Principal&) {
      return SetDraining(request->name(), true, response);
    });
  }
  grpc::ServerUnaryReactor* UndrainNode(grpc::CallbackServerContext* context,
                                        const v1::UndrainNodeRequest* request,
                                        v1::Node* response) override {
    return RunCall(b_, Permission::kWriteNodes, context, request, [=, this](const Principal&) {
      return SetDraining(request->name(), false, response);
    });
  }
  grpc::ServerUnaryReactor* ConfirmNodeEmpty(grpc::CallbackServerContext* context,
                                             const v1::ConfirmNodeEmptyRequest* request,
                                             v1::Node* response) override {
    return RunCall(b_, Permission::kWriteNodes, context, request,
                   [=, this](const Principal&) { return ConfirmEmpty(request->name(), response); });
  }
  grpc::ServerUnaryReactor* CreateJoinToken(grpc::CallbackServerContext* context,
                                            const v1::CreateJoinTokenRequest* request,
                                            v1::JoinToken* response) override {
    return RunCall(b_, Permission::kAdmitNodes, context, request,
                   [=, this](const Principal& by, AuditNote& note) {
                     const absl::Status status = MakeJoinToken(*request, by.name, response);
                     note.resource = response->name();
                     note.detail = absl::StrCat("for ", response->most_joins(), " nodes");
                     return status;
                   });
  }
  grpc::ServerUnaryReactor* ListJoinTokens(grpc::CallbackServerContext* context,
                                           const v1::ListJoinTokensRequest* request,
                                           v1::ListJoinTokensResponse* response) override {
    return RunCall(b_, Permission::kAdmitNodes, context, request,
                   [=, this](const Principal&) -> absl::Status {
                     TY_ASSIGN_OR_RETURN(const std::vector<JoinToken> tokens,
                                         b_.stores.node_keys().ListJoinTokens());
                     for (const JoinToken& one : tokens)
                       *response->add_join_tokens() = ToProto(one);
                     return absl::OkStatus();
                   });
  }
  grpc::ServerUnaryReactor* RevokeJoinToken(grpc::CallbackServerContext* context,
                                            const v1::RevokeJoinTokenRequest* request,
                                            v1::JoinToken* response) override {
    return RunCall(
        b_, Permission::kAdmitNodes, context, request, [=, this](const Principal&) -> absl::Status {
          TY_ASSIGN_OR_RETURN(const std::string id, ParseJoinTokenName("name", request->name()));
          TY_ASSIGN_OR_RETURN(const JoinToken token, b_.stores.node_keys().RevokeJoinToken(id));
          TY_RETURN_IF_ERROR(b_.revocations.Keep({CredentialKind::kJoinToken, id}));
          *response = ToProto(token);
          return absl::OkStatus();
        });
  }
  grpc::ServerUnaryReactor* RevokeNode(grpc::CallbackServerContext* context,
                                       const v1::RevokeNodeRequest* request,
                                       v1::RevokeNodeResponse* response) override {
    return RunCall(b_, Permission::kAdmitNodes, context, request, [=, this](const Principal& by) {
      return Revoke(request->name(), by.name, response);
    });
  }
  grpc::ServerUnaryReactor* ListPools(grpc::CallbackServerContext* context,
                                      const v1::ListPoolsRequest* request,
                                      v1::ListPoolsResponse* response) override {
    return RunCall(
        b_, Permission::kReadNodes, context, request, [=, this](const Principal&) -> absl::Status {
          TY_ASSIGN_OR_RETURN(const NodeRequests requests,
                              b_.stores.provision().ListNodeRequests(WhichRequests::kAll));
          TY_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, b_.stores.fleet().ListNodes());
          ShowPools(b_.pools, requests.requests, nodes, response);
          return absl::OkStatus();
        });
  }

 private:
  absl::Status MakeJoinToken(const v1::CreateJoinTokenRequest& request, const std::string& by,
                             v1::JoinToken* response) {
    if (b_.admission == nullptr) {
      return absl::FailedPreconditionError(
          "machines join through a port for agents, which this server does not have: start it with "
          "--listen-agents and --authority-key");
    }
    const JoinToken wanted{.pool = request.pool(),
                           .creator = by,
                           .most_joins = request.most_joins() == 0 ? 1 : request.most_joins()};
    const absl::Duration valid_for = request.has_valid_for()
                                         ? absl::Seconds(request.valid_for().seconds()) +
                                               absl::Nanoseconds(request.valid_for().nanos())
                                         : kJoinTokenValid;
    TY_ASSIGN_OR_RETURN(const NodeAdmission::NewToken made,
                        b_.admission->MakeToken(wanted, valid_for));
    *response = ToProto(made.token);
    response->set_file(made.file);
    response->set_authority_fingerprint(made.authority_fingerprint);
    spdlog::info("{} made join token {} for {} nodes", by, made.token.id, made.token.most_joins);
    return absl::OkStatus();
  }

  absl::Status Revoke(const std::string& name, const std::string& by,
                      v1::RevokeNodeResponse* response) {
    TY_ASSIGN_OR_RETURN(const std::string node, ParseNodeName("name", name));
    TY_ASSIGN_OR_RETURN(const NodeKey key, b_.stores.node_keys().RevokeNode(node, by));
    b_.stores.wakeups().Wake(RevokedTopic(node));
    spdlog::warn("{} revoked the key of nodes/{}", by, node);
    TY_RETURN_IF_ERROR(b_.revocations.Keep({CredentialKind::kNodeKey, key.fingerprint}));
    response->set_name(name);
    response->set_node_uid(key.node_uid);
    SetTimestamp(key.join_time, *response->mutable_join_time());
    SetTimestamp(key.revoke_time, *response->mutable_revoke_time());
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListNodesRequest& request, const Principal& by,
                    v1::ListNodesResponse* response) {
    TY_ASSIGN_OR_RETURN(const int page_size, CheckPageSize(request.page_size(), 100, 1000));
    TY_ASSIGN_OR_RETURN(const std::string after, ReadPageToken("nodes", request.page_token()));
    TY_ASSIGN_OR_RETURN(SchedulerSnapshot snapshot, b_.stores.scheduler().ReadSnapshot());
    std::sort(snapshot.nodes.begin(), snapshot.nodes.end(),
              [](const NodeRecord& a, const NodeRecord& b) { return a.name < b.name; });
    std::string last;
    for (const NodeRecord& node : snapshot.nodes) {
      if (node.name <= after) continue;
      if (response->nodes_size() == page_size) {
        response->set_next_page_token(MakePageToken("nodes", last));
        break;
      }
      v1::Node& shown = *response->add_nodes();
      shown = ToProto(node, snapshot);
      HideOthers(by, shown);
      last = node.name;
    }
    return absl::OkStatus();
  }

  absl::Status Find(const std::string& node, v1::Node* response) {
    TY_ASSIGN_OR_RETURN(const SchedulerSnapshot snapshot, b_.stores.scheduler().ReadSnapshot());
    const auto found = std::find_if(snapshot.nodes.begin(), snapshot.nodes.end(),
                                    [&](const NodeRecord& record) { return record.name == node; });
    if (found == snapshot.nodes.end()) {
      return absl::NotFoundError(absl::StrCat("nodes/", node, ": no such node ever registered"));
    }
    *response = ToProto(*found, snapshot);
    return absl::OkStatus();
  }

  absl::Status SetDraining(const std::string& name, bool draining, v1::Node* response) {
    TY_ASSIGN_OR_RETURN(const std::string node, ParseNodeName("name", name));
    TY_RETURN_IF_ERROR(b_.stores.fleet().SetDraining(node, draining).status());
    b_.stores.wakeups().Wake("queue");
    return Find(node, response);
  }

  absl::Status ConfirmEmpty(const std::string& name, v1::Node* response) {
    TY_ASSIGN_OR_RETURN(const std::string node, ParseNodeName("name", name));
    TY_RETURN_IF_ERROR(Find(node, response));
    TY_ASSIGN_OR_RETURN(const int confirmed, b_.stores.fleet().ConfirmEmpty(node));
    if (confirmed > 0) {
      spdlog::warn("nodes/{}: {} lost ranks are gone, says an operator", node, confirmed);
    }
    for (const v1::LostRank& lost : response->lost_ranks()) {  // a cancelled job may have ended
      b_.stores.wakeups().Wake("job:" + lost.job_uid());
    }
    response->Clear();
    b_.stores.wakeups().Wake("queue");
    b_.stores.wakeups().Wake("fleet");
    return Find(node, response);
  }

  const ServiceDependencies b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeNodeService(const ServiceDependencies& dependencies) {
  return std::make_shared<NodeService>(dependencies);
}

}  // namespace trainyard
