#include "clients/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/backoff.h"
#include "clients/cpp/silence_guard.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/tls/credentials.h"
#include "storage/base/clock.h"
#include "storage/base/ids.h"
#include "storage/base/server_list.h"
#include "storage/base/status.h"
#include "trainyard/v1/access_service.grpc.pb.h"
#include "trainyard/v1/job_service.grpc.pb.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

// To be connected, TLS included, on a slow link or by a busy machine.
constexpr absl::Duration kConnectTimeout = absl::Seconds(1);
constexpr absl::Duration kLookForStop = absl::Milliseconds(100);
constexpr absl::Duration kLongestDelay = absl::Seconds(10);  // cap on what a server asks for
constexpr size_t kMostInCall = 256;                          // jobs
constexpr size_t kMostBytesInCall = 1 << 20;

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// The status of a call that this client did not cancel. gRPC says CANCELLED of a call that reaches
// a server just as it shuts down; to callers that is UNAVAILABLE.
grpc::Status CancelledToUnavailable(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::CANCELLED) return status;
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down");
}

// After which time the server wants the call to be sent again, if it said so.
std::optional<absl::Duration> RetryDelayOf(const google::rpc::Status& details) {
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::RetryInfo info;
    if (!any.Is<google::rpc::RetryInfo>() || !any.UnpackTo(&info)) continue;
    const absl::Duration delay =
        absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
    return std::clamp(delay, absl::ZeroDuration(), kLongestDelay);
  }
  return std::nullopt;
}

std::optional<absl::Duration> RetryDelayOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  return RetryDelayOf(details);
}

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // A dead peer is noticed after 10 s + 5 s. Servers allow pings that are at least 5 s apart.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // The least time that a connection is given to be made.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kConnectTimeout)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // Client itself retries
  arguments.SetMaxReceiveMessageSize(64 << 20);
  if (IsLoopback(server)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(server, credentials, arguments);
}

}  // namespace

// The channel to one of the yard's servers, and its stubs.
struct Endpoint {
  Endpoint(const std::string& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : channel(MakeChannel(server, credentials)),
        jobs(v1::JobService::NewStub(channel)),
        metrics(v1::MetricService::NewStub(channel)),
        logs(v1::LogService::NewStub(channel)),
        checkpoints(v1::CheckpointService::NewStub(channel)),
        nodes(v1::NodeService::NewStub(channel)),
        info(v1::InfoService::NewStub(channel)),
        access(v1::AccessService::NewStub(channel)) {}

  // Shared with the stubs below, which are destroyed before it.
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::JobService::Stub> jobs;
  std::unique_ptr<v1::MetricService::Stub> metrics;
  std::unique_ptr<v1::LogService::Stub> logs;
  std::unique_ptr<v1::CheckpointService::Stub> checkpoints;
  std::unique_ptr<v1::NodeService::Stub> nodes;
  std::unique_ptr<v1::InfoService::Stub> info;
  std::unique_ptr<v1::AccessService::Stub> access;
};

struct Client::Connection {
  explicit Connection(ClientOptions o) : options(std::move(o)) {
    const absl::StatusOr<std::vector<std::string>> servers = ParseServers(options.server);
    const auto credentials = MakeChannelCredentials(options.authorities);
    unusable = servers.ok() ? credentials.status() : servers.status();
    if (!unusable.ok()) return;
    for (const std::string& server : *servers) {
      endpoints.push_back(std::make_unique<Endpoint>(server, *credentials));
    }
  }

  // The server at index `failed` is away: the next call goes to the one after it, unless another
  // call has moved on already.
  void UseNextServerAfter(size_t failed) {
    current.compare_exchange_strong(failed, (failed + 1) % endpoints.size());
  }

  // gRPC gets on with a connection while somebody waits for its channel. Calls do not once it has
  // failed: they fail at once, and whoever only sleeps between them may never be connected again.
  // `asked_for`: the server named a delay, which is kept to in any case.
  void WaitBeforeRetry(absl::Duration wait, bool asked_for) const {
    grpc::Channel& channel = *endpoints[current]->channel;
    if (channel.GetState(true) == GRPC_CHANNEL_READY) {
      absl::SleepFor(wait);  // the server itself has nothing for us yet
    } else {
      const absl::Time until = absl::Now() + wait;
      const bool connected = channel.WaitForConnected(absl::ToChronoTime(until));
      if (connected && asked_for) absl::SleepFor(until - absl::Now());
    }
  }

  // Before a stream begins on a server that was away: lets the connection be made.
  void WaitIfItWasAway(size_t asked, const Stop& stop) const {
    grpc::Channel& channel = *endpoints[asked]->channel;
    const absl::Time until = absl::Now() + kConnectTimeout;
    while (channel.GetState(true) == GRPC_CHANNEL_TRANSIENT_FAILURE && !stop.requested() &&
           absl::Now() < until) {
      channel.WaitForConnected(absl::ToChronoTime(absl::Now() + kLookForStop));
    }
  }

  void Prepare(grpc::ClientContext& context) const {
    if (!options.token.empty()) {
      context.AddMetadata("authorization", absl::StrCat("Bearer ", options.token));
    }
  }

  // For how long a call that ended with `code` is retried, counted from its first try.
  absl::Duration PatienceFor(int code, std::optional<absl::Duration> delay) const {
    if (code == grpc::StatusCode::UNAVAILABLE) return options.patience;
    // Without a delay RESOURCE_EXHAUSTED will not pass with time: a message is too large, say.
    const bool busy = code == grpc::StatusCode::RESOURCE_EXHAUSTED;
    return busy && delay.has_value() ? options.patience_when_busy : absl::ZeroDuration();
  }

  // One unary call, repeated while the server is away or busy and patience lasts. Each server is
  // asked at least once before an UNAVAILABLE call is given up.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(std::unique_ptr<Stub> Endpoint::*service,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    TY_RETURN_IF_ERROR(unusable);
    const absl::Duration begin = SystemClock().SinceBoot();
    Backoff backoff(absl::Milliseconds(30), absl::Milliseconds(500));
    for (size_t tries = 1;; ++tries) {
      grpc::ClientContext context;
      Prepare(context);
      context.set_deadline(absl::ToChronoTime(absl::Now() + options.call_timeout));
      Response response;
      const size_t asked = current;
      Stub& stub = *((*endpoints[asked]).*service);
      const grpc::Status status =
          CancelledToUnavailable((stub.*method)(&context, request, &response));
      if (status.ok()) return response;
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
        UseNextServerAfter(asked);
        if (tries < endpoints.size()) continue;
      }
      const std::optional<absl::Duration> delay = RetryDelayOf(status);
      const absl::Duration wait = backoff.Next(delay.value_or(absl::ZeroDuration()));
      if (SystemClock().SinceBoot() + wait > begin + PatienceFor(status.error_code(), delay)) {
        return FromGrpc(status);
      }
      WaitBeforeRetry(wait, delay.has_value());
    }
  }

  // The status of a stream from the server at index `asked` that ended. Moves on if that server is
  // away.
  absl::Status EndOf(size_t asked, const Stop& stop, const grpc::Status& status) {
    const bool away = CancelledToUnavailable(status).error_code() == grpc::StatusCode::UNAVAILABLE;
    if (stop.requested() || !away) return FromGrpc(status);
    UseNextServerAfter(asked);
    return FromGrpc(CancelledToUnavailable(status));
  }

  const ClientOptions options;
  absl::Status unusable;  // why the options are unusable, or OK
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::atomic<size_t> current = 0;
};

Client::Client(ClientOptions options)
    : connection_(std::make_unique<Connection>(std::move(options))) {}
Client::~Client() = default;

const std::string& Client::server() const { return connection_->options.server; }

absl::StatusOr<v1::Job> Client::SubmitJob(v1::SubmitJobRequest request) {
  if (request.request_id().empty() && !request.validate_only()) {
    request.set_request_id(RandomHex(16));
  }
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::SubmitJob, request);
}

// Submissions under way, with an answer for each.
struct Client::Submissions {
  const std::string& parent;
  std::vector<v1::SubmitJobRequest> requests;
  std::vector<absl::StatusOr<v1::Job>> answers;
  std::vector<size_t> open;  // indices of those without a final answer; ascending
  absl::Duration patience;   // the longest for which an open one may be retried
  absl::Duration delay;      // the longest that a server asked for before an open one is sent again
  absl::Status away;         // of a call that failed as a whole: the rest is not sent
};

// Sends in one call as many of `open`, from index `next` on, as fit into it. Stores their answers,
// and adds those that are to be sent again to `again`. Returns the index in `open` after the last.
size_t Client::SubmitSome(Submissions& all, size_t next, std::vector<size_t>& again) {
  v1::BatchSubmitJobsRequest batch;
  batch.set_parent(all.parent);
  const size_t begin = next;
  for (size_t bytes = 0; next < all.open.size() && next - begin < kMostInCall; ++next) {
    const v1::SubmitJobRequest& request = all.requests[all.open[next]];
    bytes += request.ByteSizeLong();
    if (next > begin && bytes > kMostBytesInCall) break;
    *batch.add_requests() = request;
  }
  const size_t asked = connection_->current;
  const absl::StatusOr<v1::BatchSubmitJobsResponse> response =
      connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::BatchSubmitJobs, batch);
  const bool job_by_job =
      absl::IsUnimplemented(response.status()) || absl::IsInvalidArgument(response.status());
  for (size_t i = begin; i < next; ++i) {
    const size_t row = all.open[i];
    absl::StatusOr<v1::Job>& answer = all.answers[row];
    const auto place = static_cast<int>(i - begin);
    if (job_by_job && !all.away.ok()) {
      answer = all.away;
    } else if (job_by_job) {
      v1::SubmitJobRequest request = all.requests[row];
      if (request.parent().empty()) request.set_parent(all.parent);
      answer = SubmitJob(std::move(request));
      if (absl::IsUnavailable(answer.status())) all.away = answer.status();
    } else if (!response.ok()) {
      answer = response.status();
    } else if (place >= response->results_size()) {
      answer = absl::InternalError("the server answered fewer jobs than it was sent");
    } else if (response->results(place).has_error()) {
      const google::rpc::Status& error = response->results(place).error();
      answer = absl::Status(static_cast<absl::StatusCode>(error.code()), error.message());
      const std::optional<absl::Duration> delay = RetryDelayOf(error);
      const absl::Duration patience = connection_->PatienceFor(error.code(), delay);
      if (patience == absl::ZeroDuration()) continue;
      if (absl::IsUnavailable(answer.status())) connection_->UseNextServerAfter(asked);
      again.push_back(row);
      all.patience = std::max(all.patience, patience);
      all.delay = std::max(all.delay, delay.value_or(absl::ZeroDuration()));
    } else {
      answer = response->results(place).job();
    }
  }
  // The next call would fail like this one, after as long a wait.
  if (!job_by_job && !response.ok()) all.away = response.status();
  return next;
}

std::vector<absl::StatusOr<v1::Job>> Client::SubmitMany(
    const std::string& parent, std::vector<v1::SubmitJobRequest> requests) {
  Submissions all{.parent = parent, .requests = std::move(requests)};
  for (v1::SubmitJobRequest& request : all.requests) {
    if (request.request_id().empty()) request.set_request_id(RandomHex(16));
    all.open.push_back(all.open.size());
  }
  all.answers.assign(all.requests.size(), absl::UnknownError("not sent"));
  absl::Duration begin = SystemClock().SinceBoot();
  Backoff backoff(absl::Milliseconds(30), absl::Milliseconds(500));
  while (!all.open.empty()) {
    std::vector<size_t> again;
    all.patience = all.delay = absl::ZeroDuration();
    for (size_t next = 0; next < all.open.size();) {
      if (!all.away.ok()) {
        all.answers[all.open[next++]] = all.away;
        continue;
      }
      next = SubmitSome(all, next, again);
    }
    if (again.size() < all.open.size()) begin = SystemClock().SinceBoot();
    all.open = std::move(again);
    const absl::Duration wait = backoff.Next(all.delay);
    if (SystemClock().SinceBoot() + wait > begin + all.patience) break;
    absl::SleepFor(wait);
  }
  return std::move(all.answers);
}

absl::StatusOr<v1::PlanLayoutsResponse> Client::PlanLayouts(const v1::PlanLayoutsRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::PlanLayouts, request);
}

absl::StatusOr<v1::Job> Client::GetJob(const v1::GetJobRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::GetJob, request);
}

absl::StatusOr<v1::Gang> Client::GetGang(const v1::GetGangRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::GetGang, request);
}

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs(const v1::ListJobsRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::ListJobs, request);
}

absl::StatusOr<v1::Job> Client::CancelJob(const v1::CancelJobRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::CancelJob, request);
}

absl::StatusOr<v1::Job> Client::PauseJob(const v1::PauseJobRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::PauseJob, request);
}

absl::StatusOr<v1::Job> Client::ResumeJob(const v1::ResumeJobRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::ResumeJob, request);
}

absl::StatusOr<v1::Job> Client::ResizeJob(const v1::ResizeJobRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::ResizeJob, request);
}

absl::Status Client::DeleteJob(const v1::DeleteJobRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::DeleteJob, request).status();
}

absl::StatusOr<v1::ExplainJobResponse> Client::ExplainJob(const v1::ExplainJobRequest& request) {
  return connection_->Call(&Endpoint::jobs, &v1::JobService::Stub::ExplainJob, request);
}

absl::StatusOr<v1::QueryMetricsResponse> Client::QueryMetrics(
    const v1::QueryMetricsRequest& request) {
  return connection_->Call(&Endpoint::metrics, &v1::MetricService::Stub::QueryMetrics, request);
}

absl::StatusOr<v1::ListCheckpointsResponse> Client::ListCheckpoints(
    const v1::ListCheckpointsRequest& request) {
  return connection_->Call(&Endpoint::checkpoints, &v1::CheckpointService::Stub::ListCheckpoints,
                           request);
}

absl::StatusOr<v1::Checkpoint> Client::GetCheckpoint(const v1::GetCheckpointRequest& request) {
  return connection_->Call(&Endpoint::checkpoints, &v1::CheckpointService::Stub::GetCheckpoint,
                           request);
}

absl::StatusOr<v1::ListPoolsResponse> Client::ListPools(const v1::ListPoolsRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::ListPools, request);
}

absl::StatusOr<v1::ListNodesResponse> Client::ListNodes(const v1::ListNodesRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::ListNodes, request);
}

absl::StatusOr<v1::Node> Client::GetNode(const v1::GetNodeRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::GetNode, request);
}

absl::StatusOr<v1::Node> Client::DrainNode(const v1::DrainNodeRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::DrainNode, request);
}

absl::StatusOr<v1::Node> Client::UndrainNode(const v1::UndrainNodeRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::UndrainNode, request);
}

absl::StatusOr<v1::Node> Client::ConfirmNodeEmpty(const v1::ConfirmNodeEmptyRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::ConfirmNodeEmpty, request);
}

absl::StatusOr<v1::JoinToken> Client::CreateJoinToken(const v1::CreateJoinTokenRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::CreateJoinToken, request);
}

absl::StatusOr<v1::ListJoinTokensResponse> Client::ListJoinTokens(
    const v1::ListJoinTokensRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::ListJoinTokens, request);
}

absl::StatusOr<v1::JoinToken> Client::RevokeJoinToken(const v1::RevokeJoinTokenRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::RevokeJoinToken, request);
}

absl::StatusOr<v1::RevokeNodeResponse> Client::RevokeNode(const v1::RevokeNodeRequest& request) {
  return connection_->Call(&Endpoint::nodes, &v1::NodeService::Stub::RevokeNode, request);
}

absl::StatusOr<v1::Caller> Client::GetCaller() {
  return connection_->Call(&Endpoint::access, &v1::AccessService::Stub::GetCaller,
                           v1::GetCallerRequest());
}

absl::StatusOr<v1::AccessToken> Client::CreateToken(const v1::CreateTokenRequest& request) {
  return connection_->Call(&Endpoint::access, &v1::AccessService::Stub::CreateToken, request);
}

absl::StatusOr<v1::ListTokensResponse> Client::ListTokens(const v1::ListTokensRequest& request) {
  return connection_->Call(&Endpoint::access, &v1::AccessService::Stub::ListTokens, request);
}

absl::StatusOr<v1::ListAuditEntriesResponse> Client::ListAuditEntries(
    const v1::ListAuditEntriesRequest& request) {
  return connection_->Call(&Endpoint::access, &v1::AccessService::Stub::ListAuditEntries, request);
}

absl::StatusOr<v1::AccessToken> Client::RevokeToken(const v1::RevokeTokenRequest& request) {
  return connection_->Call(&Endpoint::access, &v1::AccessService::Stub::RevokeToken, request);
}

absl::StatusOr<v1::Project> Client::SetProject(const v1::SetProjectRequest& request) {
  return connection_->Call(&Endpoint::access, &v1::AccessService::Stub::SetProject, request);
}

absl::StatusOr<v1::ListProjectsResponse> Client::ListProjects(
    const v1::ListProjectsRequest& request) {
  return connection_->Call(&Endpoint::access, &v1::AccessService::Stub::ListProjects, request);
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo() {
  return connection_->Call(&Endpoint::info, &v1::InfoService::Stub::GetServerInfo,
                           v1::GetServerInfoRequest());
}

absl::StatusOr<v1::Retention> Client::GetRetention() {
  return connection_->Call(&Endpoint::info, &v1::InfoService::Stub::GetRetention,
                           v1::GetRetentionRequest());
}

absl::StatusOr<v1::Retention> Client::SetRetention(const v1::SetRetentionRequest& request) {
  return connection_->Call(&Endpoint::info, &v1::InfoService::Stub::SetRetention, request);
}

absl::Status Client::WatchJob(const v1::WatchJobRequest& request, absl::Duration silence,
                              Stop& stop,
                              const std::function<bool(const v1::WatchJobResponse&)>& on_message) {
  TY_RETURN_IF_ERROR(connection_->unusable);
  const size_t asked = connection_->current;
  connection_->WaitIfItWasAway(asked, stop);
  grpc::ClientContext context;
  connection_->Prepare(context);
  SilenceGuard guard(context, silence);
  const Stop::Hook hook(stop, [&context] { context.TryCancel(); });
  const auto reader = connection_->endpoints[asked]->jobs->WatchJob(&context, request);
  v1::WatchJobResponse response;
  bool wanted = true;
  while (wanted && reader->Read(&response)) {
    guard.Heard();
    wanted = on_message(response);
  }
  if (!wanted) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!wanted) return absl::OkStatus();
  const grpc::Status silent(grpc::StatusCode::UNAVAILABLE, "the stream went silent");
  return connection_->EndOf(asked, stop, guard.fired() ? silent : status);
}

absl::Status Client::TailLogs(const v1::TailLogsRequest& request, Stop& stop,
                              const std::function<bool(const v1::TailLogsResponse&)>& on_message) {
  TY_RETURN_IF_ERROR(connection_->unusable);
  const size_t asked = connection_->current;
  connection_->WaitIfItWasAway(asked, stop);
  grpc::ClientContext context;
  connection_->Prepare(context);
  const Stop::Hook hook(stop, [&context] { context.TryCancel(); });
  const auto reader = connection_->endpoints[asked]->logs->TailLogs(&context, request);
  v1::TailLogsResponse response;
  bool wanted = true;
  while (wanted && reader->Read(&response)) wanted = on_message(response);
  if (!wanted) context.TryCancel();
  const grpc::Status status = reader->Finish();
  return wanted ? connection_->EndOf(asked, stop, status) : absl::OkStatus();
}

}  // namespace trainyard
