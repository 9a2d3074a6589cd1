#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/api/convert.h"
#include "server/api/filter.h"
#include "server/api/job_intake.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/services.h"
#include "server/api/submission.h"
#include "server/api/unary_call.h"
#include "server/api/watch_stream.h"
#include "server/fleet/provision/reconcile.h"
#include "server/rpc/bridge.h"
#include "server/scheduler/explain.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"
#include "storage/records/reason_codes.h"
#include "trainyard/v1/job_service.grpc.pb.h"

namespace trainyard {
namespace {

// Of a change that was read before it is written, while others change the job.
constexpr int kMostTries = 5;

absl::Status Fill(const absl::StatusOr<JobRecord>& job, v1::Job* out) {
  TY_RETURN_IF_ERROR(job.status());
  TY_ASSIGN_OR_RETURN(*out, ToProto(*job));
  return absl::OkStatus();
}

std::deque<v1::WatchJobResponse> ToResponses(const WatchBatch& batch) {
  std::deque<v1::WatchJobResponse> responses;
  for (const FeedRecord& item : batch.items) {
    *responses.emplace_back().mutable_item() = ToProto(item, batch.job_name);
  }
  if (batch.heartbeat) responses.emplace_back().mutable_heartbeat()->set_sequence(batch.sequence);
  if (batch.ended != nullptr) {
    v1::WatchJobResponse::End& end = *responses.emplace_back().mutable_end();
    absl::StatusOr<v1::Job> job = ToProto(*batch.ended);
    if (job.ok()) *end.mutable_job() = *std::move(job);
  }
  return responses;
}

// "jobs a, b and 254 more", of those that were taken.
std::string JobsIn(const v1::BatchSubmitJobsResponse& response) {
  constexpr int kNamed = 8;
  std::vector<std::string> named;
  int taken = 0;
  for (const v1::SubmitJobResult& result : response.results()) {
    if (!result.has_job() || ++taken > kNamed) continue;
    const std::string& name = result.job().name();
    named.push_back(name.substr(name.rfind('/') + 1));
  }
  return absl::StrCat("jobs ", absl::StrJoin(named, ", "),
                      taken > kNamed ? absl::StrCat(" and ", taken - kNamed, " more") : "");
}

class JobService final : public v1::JobService::CallbackService {
 public:
  explicit JobService(const ServiceDependencies& dependencies)
      : b_(dependencies),
        jobs_(b_.stores.jobs()),
        intake_(
            b_.stores, b_.sizer,
            [&fleet = b_.fleet](const v1::LookRequest& request, absl::Time until, bool& unseen) {
              return fleet.Look(request, until, unseen);
            },
            [&scheduler = b_.scheduler](const JobRecord& job) { return scheduler.Foretell(job); },
            b_.pools) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::Job* response) override {
    return RunCall(b_, Permission::kWriteJobs, context, request,
                   [=, this](const Principal& by, AuditNote& note) -> absl::Status {
                     TY_RETURN_IF_ERROR(TakeSubmissions(by, request->validate_only() ? 0 : 1));
                     TY_ASSIGN_OR_RETURN(*response,
                                         intake_.Submit(*request, by.name, GoneFrom(context)));
                     note.resource = response->name();
                     note.changes = !request->validate_only();
                     return absl::OkStatus();
                   });
  }
  grpc::ServerUnaryReactor* BatchSubmitJobs(grpc::CallbackServerContext* context,
                                            const v1::BatchSubmitJobsRequest* request,
                                            v1::BatchSubmitJobsResponse* response) override {
    return RunCall(b_, Permission::kWriteJobs, context, request,
                   [=, this](const Principal& by, AuditNote& note) -> absl::Status {
                     TY_RETURN_IF_ERROR(TakeSubmissions(by, request->requests_size()));
                     const absl::Status status =
                         SubmitMany(*request, by.name, GoneFrom(context), response);
                     note.detail = JobsIn(*response);
                     return status;
                   });
  }
  grpc::ServerUnaryReactor* PlanLayouts(grpc::CallbackServerContext* context,
                                        const v1::PlanLayoutsRequest* request,
                                        v1::PlanLayoutsResponse* response) override {
    return RunCall(b_, Permission::kWriteJobs, context, request, [=, this](const Principal& by) {
      return intake_.PlanLayouts(*request, by.name, GoneFrom(context), response);
    });
  }
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request, v1::Job* response) override {
    return RunCall(b_, Permission::kReadJobs, context, request,
                   [=, this](const Principal&) -> absl::Status {
                     TY_ASSIGN_OR_RETURN(const JobName name, ParseJobName("name", request->name()));
                     return Fill(jobs_.Get(name), response);
                   });
  }
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return RunCall(b_, Permission::kReadJobs, context, request,
                   [=, this](const Principal& by) { return List(*request, by, response); });
  }
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::Job* response) override {
    return Drive(context, request, response, [=, this](const Target& job, const Principal& by) {
      return jobs_.Cancel(job.name, job.version,
                          {reason::kCancelledByUser, "cancelled by " + by.name});
    });
  }
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext* context,
                                     const v1::PauseJobRequest* request,
                                     v1::Job* response) override {
    return Drive(context, request, response, [=, this](const Target& job, const Principal& by) {
      return jobs_.Pause(job.name, job.version, {reason::kPausedByUser, "paused by " + by.name},
                         b_.pause_grace);
    });
  }
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context,
                                      const v1::ResumeJobRequest* request,
                                      v1::Job* response) override {
    return Drive(context, request, response, [=, this](const Target& job, const Principal& by) {
      return jobs_.Resume(job.name, job.version, {reason::kResumedByUser, "resumed by " + by.name});
    });
  }
  grpc::ServerUnaryReactor* ResizeJob(grpc::CallbackServerContext* context,
                                      const v1::ResizeJobRequest* request,
                                      v1::Job* response) override {
    return Drive(context, request, response, [=, this](const Target& job, const Principal& by) {
      return Resize(*request, job, by.name);
    });
  }
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* context,
                                      const v1::DeleteJobRequest* request,
                                      google::protobuf::Empty*) override {
    return Drive(context, request, nullptr,
                 [=, this](const Target& job, const Principal&) { return Delete(job); });
  }
  grpc::ServerUnaryReactor* GetGang(grpc::CallbackServerContext* context,
                                    const v1::GetGangRequest* request,
                                    v1::Gang* response) override {
    return RunCall(b_, Permission::kReadJobs, context, request,
                   [=, this](const Principal&) { return Ranks(*request, response); });
  }
  grpc::ServerUnaryReactor* ExplainJob(grpc::CallbackServerContext* context,
                                       const v1::ExplainJobRequest* request,
                                       v1::ExplainJobResponse* response) override {
    return RunCall(b_, Permission::kReadJobs, context, request,
                   [=, this](const Principal& by) { return Explain(*request, by, response); });
  }
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override {
    return WatchStream<v1::WatchJobResponse>::Begin(*context, b_, "name", request->name(),
                                                    request->after_sequence(), ToResponses);
  }

 private:
  // The job that a call is about to change.
  struct Target {
    JobName name;
    int64_t version = 0;  // that the caller has seen; 0: any
  };

  static JobIntake::Gone GoneFrom(const grpc::CallbackServerContext* context) {
    return [context] { return context->IsCancelled(); };
  }

  void WakeAll(const std::string& uid) {
    b_.stores.wakeups().Wake("queue");
    b_.stores.wakeups().Wake("fleet");
    b_.stores.wakeups().Wake("job:" + uid);
  }

  absl::Status TakeSubmissions(const Principal& by, int jobs) {
    const absl::Duration wait = b_.limits.TakeSubmissions(by, jobs);
    if (wait == absl::ZeroDuration()) return absl::OkStatus();
    return WithRetryInfo(
        absl::ResourceExhaustedError(absl::StrCat(
            by.name, " has submitted as many jobs as one caller may within a minute; again in ",
            absl::FormatDuration(absl::Ceil(wait, absl::Milliseconds(100))))),
        wait);
  }

  absl::Status SubmitMany(const v1::BatchSubmitJobsRequest& request, const std::string& creator,
                          const JobIntake::Gone& gone, v1::BatchSubmitJobsResponse* response) {
    TY_ASSIGN_OR_RETURN(std::vector<absl::StatusOr<v1::Job>> answers,
                        intake_.SubmitMany(request, creator, gone));
    for (absl::StatusOr<v1::Job>& answer : answers) {
      v1::SubmitJobResult& result = *response->add_results();
      if (answer.ok()) {
        *result.mutable_job() = *std::move(answer);
      } else {
        *result.mutable_error() = ToMessage(ForCaller(answer.status()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Ranks(const v1::GetGangRequest& request, v1::Gang* response) {
    TY_ASSIGN_OR_RETURN(const JobName name, ParseJobName("name", request.name()));
    if (request.attempt() < 0) return FieldError("attempt", request.attempt(), "at least 0");
    TY_ASSIGN_OR_RETURN(const JobRecord job, jobs_.Get(name));
    FleetStore& fleet = b_.stores.fleet();
    TY_ASSIGN_OR_RETURN(const AttemptRecord attempt, fleet.FindAttempt(job.uid, request.attempt()));
    TY_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, fleet.ListNodes());
    *response = ToProto(job, attempt, nodes, b_.fleet.lease());
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListJobsRequest& request, const Principal& by,
                    v1::ListJobsResponse* response) {
    TY_ASSIGN_OR_RETURN(std::string project, ParseProjectName("parent", request.parent(), true));
    if (!by.project.empty()) project = by.project;  // all projects: those of the caller
    TY_ASSIGN_OR_RETURN(int page_size, CheckPageSize(request.page_size(), 50, 1000));
    TY_ASSIGN_OR_RETURN(const std::vector<JobFilter> filter, ParseFilter(request.filter()));
    const std::string question = absl::StrCat("jobs\n", project, "\n", request.filter());
    TY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(question, request.page_token()));
    while (true) {
      TY_ASSIGN_OR_RETURN(const JobPage page, jobs_.List(project, filter, page_size, cursor));
      response->Clear();
      for (const JobRecord& job : page.jobs) {
        TY_ASSIGN_OR_RETURN(*response->add_jobs(), ToProto(job));
      }
      response->set_next_page_token(MakePageToken(question, page.next_cursor));
      if (response->ByteSizeLong() <= kLargestAnswer || page_size == 1) return absl::OkStatus();
      page_size /= 2;  // large specs: a page may be shorter than asked for
    }
  }

  // kFailedPrecondition while a lost rank of the job may still run: what the job has written is
  // kept as long as that rank may write.
  absl::Status CheckNoneLives(const JobRecord& job) {
    TY_ASSIGN_OR_RETURN(const std::vector<AttemptRecord> attempts,
                        b_.stores.fleet().ListAttempts(job.uid));
    for (const AttemptRecord& attempt : attempts) {
      for (const RankRecord& rank : attempt.ranks) {
        const absl::Time over = rank.gone_time + b_.planner.orphan_limit + kOrphanMargin;
        if (rank.state != RankState::kLost || over <= absl::Now()) continue;
        return absl::FailedPreconditionError(absl::StrCat(
            "job ", job.job_id, " cannot be deleted yet: rank ", rank.id.rank, " of attempt ",
            attempt.attempt, " may still run on nodes/", rank.node,
            ", whose lease ended; it can be deleted once the node is heard of again, or from ",
            absl::FormatTime(absl::RFC3339_sec, over, absl::UTCTimeZone()), " on"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<JobRecord> Delete(const Target& target) {
    TY_ASSIGN_OR_RETURN(JobRecord job, jobs_.Get(target.name));
    if (IsTerminal(job.state)) TY_RETURN_IF_ERROR(CheckNoneLives(job));
    TY_RETURN_IF_ERROR(jobs_.Delete(target.name, target.version));
    return job;
  }

  absl::StatusOr<JobRecord> Resize(const v1::ResizeJobRequest& request, const Target& target,
                                   const std::string& by) {
    for (int tries = 1;; ++tries) {
      TY_ASSIGN_OR_RETURN(const JobRecord current, jobs_.Get(target.name));
      TY_ASSIGN_OR_RETURN(const SlotRange range, intake_.CheckRange(request, current));
      // What the request leaves out was read, and another call may have changed it since.
      const int64_t version = target.version != 0 ? target.version : current.version;
      absl::StatusOr<JobRecord> job = jobs_.SetSlotRange(target.name, version, range, by);
      if (job.ok()) job->slots = current.slots;
      const bool changed_meanwhile = absl::IsAborted(job.status()) && target.version == 0;
      if (!changed_meanwhile || tries == kMostTries) return job;
    }
  }

  // kPermissionDenied: it is not the principal's own, and others' are not its business.
  absl::Status CheckMayChange(const JobName& name, const Principal& by) {
    if (HasPermission(by, Permission::kChangeAnyJob)) return absl::OkStatus();
    TY_ASSIGN_OR_RETURN(const JobRecord job, jobs_.Get(name));
    if (job.creator == by.name) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(by.name, " (role ", by.role, ") may not ",
                                                    PermissionName(Permission::kChangeAnyJob),
                                                    ": this one is of ", job.creator));
  }

  // All calls that change a job: they differ in `arrow` alone.
  template <typename Request, typename Arrow>
  grpc::ServerUnaryReactor* Drive(grpc::CallbackServerContext* context, const Request* request,
                                  v1::Job* response, Arrow arrow) {
    return RunCall(b_, Permission::kWriteJobs, context, request,
                   [=, this](const Principal& by) -> absl::Status {
                     Target target;
                     TY_ASSIGN_OR_RETURN(target.name, ParseJobName("name", request->name()));
                     TY_RETURN_IF_ERROR(CheckMayChange(target.name, by));
                     if (!request->etag().empty()) {
                       TY_ASSIGN_OR_RETURN(const JobRecord current, jobs_.Get(target.name));
                       TY_ASSIGN_OR_RETURN(target.version, VersionOfEtag(request->etag(), current));
                     }
                     const absl::StatusOr<JobRecord> job = arrow(target, by);
                     TY_RETURN_IF_ERROR(job.status());
                     WakeAll(job->uid);
                     return response == nullptr ? absl::OkStatus() : Fill(job, response);
                   });
  }

  absl::Status Explain(const v1::ExplainJobRequest& request, const Principal& by,
                       v1::ExplainJobResponse* response) {
    TY_ASSIGN_OR_RETURN(const JobName name, ParseJobName("name", request.name()));
    TY_ASSIGN_OR_RETURN(const JobRecord job, jobs_.Get(name));
    TY_ASSIGN_OR_RETURN(const auto attempts, b_.stores.fleet().ListAttempts(job.uid));
    TY_ASSIGN_OR_RETURN(SchedulerSnapshot snapshot, b_.stores.scheduler().ReadSnapshot());
    TrustLeases(snapshot);
    Explanation explanation = trainyard::Explain(job, attempts, snapshot, b_.planner, IsAccepted);
    if (job.state == JobState::kQueued) {
      TY_RETURN_IF_ERROR(ExplainPools(job, snapshot, explanation));
    }
    TY_ASSIGN_OR_RETURN(*response, ToProto(job, explanation));
    if (!by.project.empty()) {
      for (std::string& ahead : *response->mutable_ahead()) {
        if (!CheckProject(by, ahead).ok()) ahead = "projects/-/jobs/-";
      }
    }
    return absl::OkStatus();
  }

  // What was asked of the pools whose nodes could serve a job that waits.
  absl::Status ExplainPools(const JobRecord& job, const SchedulerSnapshot& snapshot,
                            Explanation& explanation) {
    std::set<std::string> serve;
    for (const Pool& pool : b_.pools) {
      const bool device = job.device.empty() || job.device == pool.device;
      if (device && pool.bytes >= job.bytes_per_slot) serve.insert(pool.name);
    }
    if (serve.empty()) return absl::OkStatus();
    TY_ASSIGN_OR_RETURN(NodeRequests asked,
                        b_.stores.provision().ListNodeRequests(WhichRequests::kAll));
    std::erase_if(asked.requests,
                  [&](const NodeRequest& one) { return serve.count(one.pool) == 0; });
    std::set<std::string> registered;
    for (const NodeRecord& node : snapshot.nodes) registered.insert(node.name);
    for (std::string& sentence : DescribeRequests(asked.requests, registered, snapshot.now)) {
      absl::StrAppend(&explanation.reason.message, "; ", sentence);
      explanation.details.push_back(std::move(sentence));
    }
    // Nobody needs to start an agent where nodes come by themselves.
    if (explanation.reason.code == reason::kNoNodes) explanation.suggestions.clear();
    return absl::OkStatus();
  }

  const ServiceDependencies b_;
  JobStore& jobs_;
  JobIntake intake_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeJobService(const ServiceDependencies& dependencies) {
  return std::make_shared<JobService>(dependencies);
}

}  // namespace trainyard
