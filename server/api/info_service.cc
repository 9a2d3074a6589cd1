#include <grpcpp/grpcpp.h>

#include "server/api/services.h"
#include "server/api/unary_call.h"
#include "server/rpc/bridge.h"
#include "storage/base/status.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

class InfoService final : public v1::InfoService::CallbackService {
 public:
  explicit InfoService(const Backstage& backstage) : b_(backstage) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override {
    return RunCall(b_, *context, *request, [=, this] { return Get(*context, response); });
  }

 private:
  absl::Status Get(const grpc::CallbackServerContext& context, v1::ServerInfo* response) {
    TY_RETURN_IF_ERROR(
        b_.authenticator.Admit(AuthorizationOf(context), Permission::kReadServer).status());
    response->set_version(b_.version);
    response->set_schema_version(b_.schema_version);
    response->set_replica(b_.replica);
    response->set_leader(b_.scheduler.leader());
    return absl::OkStatus();
  }

  const Backstage b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeInfoService(const Backstage& backstage) {
  return std::make_shared<InfoService>(backstage);
}

}  // namespace trainyard
