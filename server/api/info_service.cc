#include <grpcpp/grpcpp.h>

#include "server/api/convert.h"
#include "server/api/services.h"
#include "server/api/unary_call.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

class InfoService final : public v1::InfoService::CallbackService {
 public:
  explicit InfoService(const ServiceDependencies& dependencies) : b_(dependencies) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override {
    return RunCall(b_, Permission::kReadServer, context, request, [=, this](const Principal&) {
      const absl::Duration asked = SystemClock().SinceBoot();
      const absl::Status store = b_.stores.Probe();
      if (!store.ok()) response->set_store_error(std::string(store.message()));
      response->set_store_ms(absl::ToDoubleMilliseconds(SystemClock().SinceBoot() - asked));
      SetTimestamp(SystemClock().Now(), *response->mutable_time());
      response->set_version(b_.version);
      response->set_schema_version(b_.schema_version);
      response->set_replica(b_.replica);
      response->set_leader(b_.scheduler.leader());
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* GetRetention(grpc::CallbackServerContext* context,
                                         const v1::GetRetentionRequest* request,
                                         v1::Retention* response) override {
    return RunCall(b_, Permission::kKeepRecords, context, request,
                   [=, this](const Principal&) { return Show(response); });
  }
  grpc::ServerUnaryReactor* SetRetention(grpc::CallbackServerContext* context,
                                         const v1::SetRetentionRequest* request,
                                         v1::Retention* response) override {
    return RunCall(b_, Permission::kKeepRecords, context, request,
                   [=, this](const Principal&) { return Set(request->retention(), response); });
  }

 private:
  absl::Status Show(v1::Retention* response) {
    TY_ASSIGN_OR_RETURN(const Retention kept, b_.stores.retention().GetRetention());
    response->mutable_ended_jobs()->set_seconds(absl::ToInt64Seconds(kept.ended_jobs));
    response->mutable_gone_nodes()->set_seconds(absl::ToInt64Seconds(kept.gone_nodes));
    return absl::OkStatus();
  }

  absl::Status Set(const v1::Retention& wanted, v1::Retention* response) {
    TY_ASSIGN_OR_RETURN(Retention kept, b_.stores.retention().GetRetention());
    if (wanted.has_ended_jobs()) kept.ended_jobs = absl::Seconds(wanted.ended_jobs().seconds());
    if (wanted.has_gone_nodes()) kept.gone_nodes = absl::Seconds(wanted.gone_nodes().seconds());
    TY_RETURN_IF_ERROR(b_.stores.retention().SetRetention(kept));
    return Show(response);
  }

  const ServiceDependencies b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeInfoService(const ServiceDependencies& dependencies) {
  return std::make_shared<InfoService>(dependencies);
}

}  // namespace trainyard
