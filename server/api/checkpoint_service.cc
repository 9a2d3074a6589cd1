#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/api/best_checkpoints.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/services.h"
#include "server/api/unary_call.h"
#include "storage/base/status.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

class CheckpointService final : public v1::CheckpointService::CallbackService {
 public:
  explicit CheckpointService(const ServiceDependencies& dependencies) : b_(dependencies) {}

  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsResponse* response) override {
    return RunCall(b_, Permission::kReadJobs, context, request,
                   [=, this](const Principal&) { return List(*request, response); });
  }
  grpc::ServerUnaryReactor* GetCheckpoint(grpc::CallbackServerContext* context,
                                          const v1::GetCheckpointRequest* request,
                                          v1::Checkpoint* response) override {
    return RunCall(b_, Permission::kReadJobs, context, request,
                   [=, this](const Principal&) { return Get(*request, response); });
  }

 private:
  absl::Status List(const v1::ListCheckpointsRequest& request,
                    v1::ListCheckpointsResponse* response) {
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
    TY_ASSIGN_OR_RETURN(const auto ranks, BestRanks(job, all));
    for (const CheckpointRecord& checkpoint : all) {
      if (checkpoint.step >= below) continue;
      if (response->checkpoints_size() == page_size) {
        const int64_t last = response->checkpoints(page_size - 1).step();
        response->set_next_page_token(MakePageToken(question, absl::StrCat(last)));
        break;
      }
      *response->add_checkpoints() = Show(checkpoint, name, ranks);
    }
    return absl::OkStatus();
  }

  absl::Status Get(const v1::GetCheckpointRequest& request, v1::Checkpoint* response) {
    TY_ASSIGN_OR_RETURN(const CheckpointName name, ParseCheckpointName("name", request.name()));
    TY_ASSIGN_OR_RETURN(const JobRecord job, b_.stores.jobs().Get(name.job));
    TY_ASSIGN_OR_RETURN(const auto all, b_.stores.jobs().ListCheckpoints(job.uid));
    TY_ASSIGN_OR_RETURN(const auto ranks, BestRanks(job, all));
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const CheckpointRecord& checkpoint) {
          if (name.best) return RankOf(checkpoint, ranks) == 1;
          return !name.step.has_value() || checkpoint.step == *name.step;
        });
    if (found == all.end()) {
      const char* const why = all.empty() ? "the job has no checkpoint yet"
                              : name.best ? "none was evaluated for spec.checkpoint.best"
                                          : "no such checkpoint, or deleted since";
      return absl::NotFoundError(absl::StrCat(request.name(), ": ", why));
    }
    *response = Show(*found, name.job, ranks);
    return absl::OkStatus();
  }

  using Ranks = std::map<int64_t, int>;

  static int RankOf(const CheckpointRecord& checkpoint, const Ranks& ranks) {
    const auto found = ranks.find(checkpoint.step);
    return found == ranks.end() ? 0 : found->second;
  }

  static v1::Checkpoint Show(const CheckpointRecord& checkpoint, const JobName& job,
                             const Ranks& ranks) {
    v1::Checkpoint shown = ToProto(checkpoint, FormatJobName(job));
    shown.set_best_rank(RankOf(checkpoint, ranks));
    return shown;
  }

  const ServiceDependencies b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeCheckpointService(const ServiceDependencies& dependencies) {
  return std::make_shared<CheckpointService>(dependencies);
}

}  // namespace trainyard
