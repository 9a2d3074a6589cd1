#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/cpp/stop.h"
#include "trainyard/v1/access_service.pb.h"
#include "trainyard/v1/job_service.pb.h"
#include "trainyard/v1/run_services.pb.h"

namespace trainyard {

struct ClientOptions {
  // HOST:PORT, or several with commas between them: the servers of one yard. The first is asked
  // until it is away, then the next.
  std::string server;
  std::string token;  // sent as `authorization: Bearer`; empty: no token
  // Certificates (PEM text) of the authorities that vouch for the servers, which then are reached
  // by TLS alone; "system": those that this machine trusts. Empty: clear text. All of gRPC's TLS in
  // this process is 1.3 alone (proto/tls/credentials.h).
  std::string authorities;
  // For one try of a unary call. If the server takes longer, the call is kDeadlineExceeded.
  absl::Duration call_timeout = absl::Seconds(30);
  // How long kUnavailable is retried before it is returned: long enough to ride over a restart.
  absl::Duration patience = absl::Seconds(3);
  // How long a call is retried that a server was too busy to take (kResourceExhausted with
  // google.rpc.RetryInfo).
  absl::Duration patience_when_busy = absl::Seconds(20);
};

// One connection to a yard. Thread-safe. Connects when the first call is made; reconnects by
// itself, to another server of the yard when one dies or says kUnavailable. With addresses or
// authorities that are not well-formed every call is kInvalidArgument.
//
// Every unary call may be repeated: reads and state changes are idempotent, and submissions get a
// request id where they have none. So kUnavailable is retried within `patience` and means, when it
// is returned, that the server or its store was away all that time; the change that was asked for
// may have been made all the same. A busy server's refusals are retried within
// `patience_when_busy`. No try begins before the delay that the server asked for, which is
// stretched at random so that clients do not come back in step. Other codes are the server's own,
// with its text.
//
// Streams are not retried: JobWatcher and LogFollower resume them.
class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& server() const;

  absl::StatusOr<v1::Job> SubmitJob(v1::SubmitJobRequest request);
  // Submits many jobs of one project (`parent`, "projects/P"; the parents of the requests may be
  // empty). Returns an answer for each, in the order of the requests, as SubmitJob would give it.
  // The jobs go out in calls of at most 256 jobs and 1 MiB; only the jobs that may be retried are
  // sent again. Patience counts from the last time that a job was answered; once no server answers
  // a call, the rest is not sent. A server that knows no batches, or refuses one as a whole, is
  // asked job by job.
  std::vector<absl::StatusOr<v1::Job>> SubmitMany(const std::string& parent,
                                                  std::vector<v1::SubmitJobRequest> requests);
  absl::StatusOr<v1::PlanLayoutsResponse> PlanLayouts(const v1::PlanLayoutsRequest& request);
  absl::StatusOr<v1::Job> GetJob(const v1::GetJobRequest& request);
  // kUnimplemented: of a server of before.
  absl::StatusOr<v1::Gang> GetGang(const v1::GetGangRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request);
  absl::StatusOr<v1::Job> PauseJob(const v1::PauseJobRequest& request);
  absl::StatusOr<v1::Job> ResumeJob(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::Job> ResizeJob(const v1::ResizeJobRequest& request);
  absl::Status DeleteJob(const v1::DeleteJobRequest& request);
  absl::StatusOr<v1::ExplainJobResponse> ExplainJob(const v1::ExplainJobRequest& request);

  absl::StatusOr<v1::QueryMetricsResponse> QueryMetrics(const v1::QueryMetricsRequest& request);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
      const v1::ListCheckpointsRequest& request);
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const v1::GetCheckpointRequest& request);
  absl::StatusOr<v1::ListNodesResponse> ListNodes(const v1::ListNodesRequest& request);
  absl::StatusOr<v1::ListPoolsResponse> ListPools(const v1::ListPoolsRequest& request);
  absl::StatusOr<v1::Node> GetNode(const v1::GetNodeRequest& request);
  absl::StatusOr<v1::Node> DrainNode(const v1::DrainNodeRequest& request);
  absl::StatusOr<v1::Node> UndrainNode(const v1::UndrainNodeRequest& request);
  absl::StatusOr<v1::Node> ConfirmNodeEmpty(const v1::ConfirmNodeEmptyRequest& request);
  absl::StatusOr<v1::JoinToken> CreateJoinToken(const v1::CreateJoinTokenRequest& request);
  absl::StatusOr<v1::ListJoinTokensResponse> ListJoinTokens(
      const v1::ListJoinTokensRequest& request);
  absl::StatusOr<v1::JoinToken> RevokeJoinToken(const v1::RevokeJoinTokenRequest& request);
  absl::StatusOr<v1::RevokeNodeResponse> RevokeNode(const v1::RevokeNodeRequest& request);

  absl::StatusOr<v1::Caller> GetCaller();
  absl::StatusOr<v1::AccessToken> CreateToken(const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::ListTokensResponse> ListTokens(const v1::ListTokensRequest& request);
  absl::StatusOr<v1::ListAuditEntriesResponse> ListAuditEntries(
      const v1::ListAuditEntriesRequest& request);
  absl::StatusOr<v1::AccessToken> RevokeToken(const v1::RevokeTokenRequest& request);
  absl::StatusOr<v1::Project> SetProject(const v1::SetProjectRequest& request);
  absl::StatusOr<v1::ListProjectsResponse> ListProjects(const v1::ListProjectsRequest& request);
  absl::StatusOr<v1::ServerInfo> GetServerInfo();
  absl::StatusOr<v1::Retention> GetRetention();
  absl::StatusOr<v1::Retention> SetRetention(const v1::SetRetentionRequest& request);

  // Calls `on_message` for each message until the stream ends (its status is returned; OK is a
  // regular end), `on_message` returns false (OK), or a stop is requested (kCancelled). A stream
  // that is silent for `silence` is given up as kUnavailable.
  absl::Status WatchJob(const v1::WatchJobRequest& request, absl::Duration silence, Stop& stop,
                        const std::function<bool(const v1::WatchJobResponse&)>& on_message);
  absl::Status TailLogs(const v1::TailLogsRequest& request, Stop& stop,
                        const std::function<bool(const v1::TailLogsResponse&)>& on_message);

 private:
  struct Connection;
  struct Submissions;
  size_t SubmitSome(Submissions& all, size_t next, std::vector<size_t>& again);
  std::unique_ptr<Connection> connection_;
};

}  // namespace trainyard
