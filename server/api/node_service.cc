#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/services.h"
#include "server/api/unary_call.h"
#include "storage/base/status.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

class NodeService final : public v1::NodeService::CallbackService {
 public:
  explicit NodeService(const ServiceDependencies& dependencies) : b_(dependencies) {}

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override {
    return RunCall(b_, Permission::kReadNodes, context, request,
                   [=, this](const Principal&) { return List(*request, response); });
  }
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context,
                                    const v1::GetNodeRequest* request,
                                    v1::Node* response) override {
    return RunCall(
        b_, Permission::kReadNodes, context, request, [=, this](const Principal&) -> absl::Status {
          TY_ASSIGN_OR_RETURN(const std::string node, ParseNodeName("name", request->name()));
          return Find(node, response);
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

 private:
  absl::Status List(const v1::ListNodesRequest& request, v1::ListNodesResponse* response) {
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
      *response->add_nodes() = ToProto(node, snapshot);
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
