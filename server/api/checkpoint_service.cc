#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/services.h"
#include "server/rpc/bridge.h"
#include "storage/base/status.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

class CheckpointService final : public v1::CheckpointService::Service {
 public:
  explicit CheckpointService(const Backstage& backstage) : b_(backstage) {}

  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    return ToGrpc(List(*context, *request, response));
  }
  grpc::Status GetCheckpoint(grpc::ServerContext* context, const v1::GetCheckpointRequest* request,
                             v1::Checkpoint* response) override {
    return ToGrpc(Get(*context, *request, response));
  }

 private:
  absl::Status List(const grpc::ServerContext& context, const v1::ListCheckpointsRequest& request,
                    v1::ListCheckpointsResponse* response) {
    TY_RETURN_IF_ERROR(
        b_.authenticator.Admit(AuthorizationOf(context), Permission::kReadJobs).status());
    TY_ASSIGN_OR_RETURN(const JobName name, ParseJobName("parent", request.parent()));
    TY_ASSIGN_OR_RETURN(const int page_size, CheckPageSize(request.page_size(), 50, 1000));
    const std::string question = absl::StrCat("checkpoints\n", request.parent());
    TY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(question, request.page_token()));
    int64_t below = INT64_MAX;  // newest first: the page begins below this step
    if (!cursor.empty() && !absl::SimpleAtoi(cursor, &below)) {
      return absl::InvalidArgumentError("page_token: damaged; begin again without one");
    }
    TY_ASSIGN_OR_RETURN(const JobRecord job, b_.stores.jobs().Get(name));
    TY_ASSIGN_OR_RETURN(const auto all, b_.stores.jobs().ListCheckpoints(job.uid));
    for (const CheckpointRecord& checkpoint : all) {
      if (checkpoint.step >= below) continue;
      if (response->checkpoints_size() == page_size) {
        const int64_t last = response->checkpoints(page_size - 1).step();
        response->set_next_page_token(MakePageToken(question, absl::StrCat(last)));
        break;
      }
      *response->add_checkpoints() = ToProto(checkpoint, FormatJobName(name));
    }
    return absl::OkStatus();
  }

  absl::Status Get(const grpc::ServerContext& context, const v1::GetCheckpointRequest& request,
                   v1::Checkpoint* response) {
    TY_RETURN_IF_ERROR(
        b_.authenticator.Admit(AuthorizationOf(context), Permission::kReadJobs).status());
    TY_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName("name", request.name()));
    TY_ASSIGN_OR_RETURN(const JobRecord job, b_.stores.jobs().Get(name.job));
    TY_ASSIGN_OR_RETURN(const auto all, b_.stores.jobs().ListCheckpoints(job.uid));
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const CheckpointRecord& checkpoint) {
          return !name.step.has_value() || checkpoint.step == *name.step;
        });
    if (found == all.end()) {
      return absl::NotFoundError(absl::StrCat(
          request.name(), ": ",
          all.empty() ? "the job has no checkpoint yet" : "no such checkpoint, or deleted since"));
    }
    *response = ToProto(*found, FormatJobName(name.job));
    return absl::OkStatus();
  }

  const Backstage b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeCheckpointService(const Backstage& backstage) {
  return std::make_shared<CheckpointService>(backstage);
}

}  // namespace trainyard
