#include <grpcpp/grpcpp.h>

#include "server/api/services.h"
#include "server/rpc/bridge.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

class InfoService final : public v1::InfoService::Service {
 public:
  explicit InfoService(const Backstage& backstage) : b_(backstage) {}

  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    const absl::Status admitted =
        b_.authenticator.Admit(AuthorizationOf(*context), Permission::kReadServer).status();
    if (!admitted.ok()) return ToGrpc(admitted);
    response->set_version(b_.version);
    response->set_schema_version(b_.schema_version);
    response->set_replica(b_.replica);
    response->set_leader(b_.scheduler.leader());
    return grpc::Status::OK;
  }

 private:
  const Backstage b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeInfoService(const Backstage& backstage) {
  return std::make_shared<InfoService>(backstage);
}

}  // namespace trainyard
