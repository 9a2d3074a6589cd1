#include "executor/agent/link.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/tls/credentials.h"
#include "proto/tls/join_token_file.h"
#include "proto/tls/pem_files.h"
#include "storage/base/file.h"
#include "storage/base/status.h"
#include "storage/base/token.h"
#include "trainyard/v1/executor_service.grpc.pb.h"

namespace trainyard {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);
constexpr absl::Duration kLongestRetry = absl::Seconds(1);
// A session shorter than this does not count as success: two agents of one name must not chase
// each other at full speed.
constexpr absl::Duration kHealthySession = absl::Seconds(3);
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kJoinTimeout = absl::Seconds(10);
constexpr absl::Duration kLongestPauseAfterRefusals = absl::Seconds(30);

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server,
                                                           const std::string& authorities,
                                                           const std::optional<TlsIdentity>& own) {
  TY_ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(authorities, own));
  grpc::ChannelArguments arguments;
  // A channel per session with connections of its own: otherwise gRPC's pause after a refused
  // connection (1 s and more) would come on top of ours.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // No pings that measure the bandwidth, as in the server.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // The desired set of a node with many ranks is large.
  arguments.SetMaxReceiveMessageSize(16 << 20);
  return grpc::CreateCustomChannel(server, credentials, arguments);
}

}  // namespace

absl::Duration ReconnectPause(int failures, double jitter) {
  const absl::Duration pause =
      std::min(kLongestRetry, kFirstRetry * std::pow(1.5, std::min(failures, 30)));
  return pause * (0.75 + 0.5 * jitter);
}

absl::Duration PauseAfterRefusals(int refusals, double jitter) {
  if (refusals == 0) return absl::ZeroDuration();
  const absl::Duration pause =
      std::min(kLongestPauseAfterRefusals, kFirstRetry * std::pow(2, std::min(refusals, 30)));
  return pause * (0.75 + 0.5 * jitter);
}

class Link::Impl {
 public:
  Impl(Options options, Clock& clock, std::function<void(LinkEvent)> deliver)
      : options_(std::move(options)),
        clock_(clock),
        deliver_(std::move(deliver)),
        running_(options_.running) {
    thread_ = std::thread([this] { Run(); });
    if (options_.certificate.has_value()) renewing_ = std::thread([this] { KeepRenewed(); });
  }

  ~Impl() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      for (grpc::ClientContext* context : {context_, joining_}) {
        if (context != nullptr) context->TryCancel();
      }
    }
    thread_.join();
    if (renewing_.joinable()) renewing_.join();
  }

  void Send(v1::AgentMessage message) {
    absl::MutexLock lock(&mu_);
    if (registered_) outgoing_.push_back(std::move(message));
  }

  void SetRunning(std::vector<v1::RankKey> running) {
    absl::MutexLock lock(&mu_);
    running_ = std::move(running);
  }

  void ResetIfSilentFor(absl::Duration limit) {
    absl::MutexLock lock(&mu_);
    if (context_ == nullptr || clock_.SinceBoot() - heard_ < limit) return;
    spdlog::warn("no word from the server for {}: connecting again", absl::FormatDuration(limit));
    context_->TryCancel();
    heard_ = clock_.SinceBoot();
  }

 private:
  using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::ServerMessage>;

  void Run() {
    std::mt19937_64 random(std::random_device{}());
    int failures = 0;
    std::string last_error;
    // A random first server spreads the agents; each turns to the next when its server does not
    // answer.
    size_t at = random() % options_.servers.size();
    for (; !Stopping(); at = (at + 1) % options_.servers.size()) {
      const absl::Duration start = clock_.SinceBoot();
      const absl::Status status = RunSession(options_.servers[at]);
      if (clock_.SinceBoot() - start >= kHealthySession) failures = 0;
      if (Stopping()) return;
      const std::string error = status.ToString();
      if (error != last_error || failures == 0)
        spdlog::warn("no session with the server: {}", error);
      last_error = error;
      const double jitter = std::uniform_real_distribution<double>(0, 1)(random);
      // Pauses grow by rounds over all servers. Who is refused may be so until somebody makes a new
      // token: thousands of such machines must not keep a server busy.
      Pause(std::max(ReconnectPause(failures++ / static_cast<int>(options_.servers.size()), jitter),
                     PauseAfterRefusals(refusals_, jitter)));
    }
  }

  // One session from connecting to its end.
  absl::Status RunSession(const std::string& server) {
    grpc::ClientContext context;
    if (!options_.token_file.empty()) {
      TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(options_.token_file, 4096));
      TY_ASSIGN_OR_RETURN(const std::string token, ParseToken(text, options_.token_file));
      context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    }
    TY_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, OpenChannel(server));
    const auto stub = v1::ExecutorService::NewStub(channel);
    if (!WaitUntilConnected(*channel)) {
      return absl::UnavailableError(absl::StrCat(server, " does not answer: ", WhyNot(*stub)));
    }
    if (!Enter(&context, server)) return absl::CancelledError("stopping");
    const std::unique_ptr<Stream> stream = stub->Connect(&context);
    const absl::Duration register_sent = clock_.SinceBoot();
    v1::AgentMessage hello;
    *hello.mutable_register_() = Hello();
    stream->Write(hello);  // a failure shows when reading
    std::thread writer([this, &stream] { WriteOutgoing(*stream); });
    const bool was_up = ReadAll(*stream, server, register_sent);
    Leave();
    writer.join();
    const absl::Status status = FromGrpc(stream->Finish());
    if (was_up) spdlog::info("the session with {} is over", server);
    if (was_up) deliver_({.kind = LinkEvent::kDown, .status = status});
    if (!was_up && absl::IsPermissionDenied(status)) ++refusals_;  // revoked, perhaps
    if (!was_up && (absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status))) {
      deliver_({.kind = LinkEvent::kRefused, .status = status});
    }
    return status.ok() ? absl::UnavailableError("the server ended the session") : status;
  }

  absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& server) {
    std::string authorities;
    if (options_.ca_file.has_value()) {
      TY_ASSIGN_OR_RETURN(authorities, ReadAuthorities(*options_.ca_file));
    }
    if (!options_.certificate.has_value()) return MakeChannel(server, authorities, std::nullopt);
    absl::StatusOr<NodeCertificate::Files> files = options_.certificate->Read(clock_.Now());
    const std::optional<JoinTokenFile> token = TokenFor(files);
    if (token.has_value()) {
      TY_RETURN_IF_ERROR(JoinYard(server, authorities, *token));
      files = options_.certificate->Read(clock_.Now());
      refusals_ = files.ok() ? 0 : refusals_ + 1;
    } else if (absl::IsNotFound(files.status())) {
      return absl::FailedPreconditionError(
          "this node has not joined the yard, and there is no file with a join token: see "
          "--join-token");
    }
    TY_RETURN_IF_ERROR(files.status());
    if (authorities.empty()) authorities = files->authorities;
    return MakeChannel(server, authorities, files->own);
  }

  // The token with which the node is to join: it has no certificate, or one that is over, or one of
  // another yard. nullopt: none of these, or the file is gone, as it may be once the node has
  // joined.
  std::optional<JoinTokenFile> TokenFor(const absl::StatusOr<NodeCertificate::Files>& files) const {
    if (!options_.join_token.has_value()) return std::nullopt;
    const bool may = files.ok() || absl::IsNotFound(files.status()) ||
                     absl::IsFailedPrecondition(files.status());
    const absl::StatusOr<std::string> text = ReadFile(*options_.join_token, 64 << 10);
    if (!may || !text.ok()) return std::nullopt;
    absl::StatusOr<JoinTokenFile> token = ParseJoinTokenFile(*text, *options_.join_token);
    if (!token.ok()) {
      spdlog::warn("{}", std::string(token.status().message()));
      return std::nullopt;
    }
    if (files.ok() && files->authorities == token->authorities) return std::nullopt;
    return *std::move(token);
  }

  // Gets the node its certificate. `authorities`: whom to trust, in place of those that came with
  // the token.
  absl::Status JoinYard(const std::string& server, std::string authorities,
                        const JoinTokenFile& token) {
    v1::JoinRequest request;
    request.set_token(token.token);
    request.set_node(options_.hello.node());
    request.set_node_secret(options_.hello.node_secret());
    if (authorities.empty()) authorities = token.authorities;
    TY_ASSIGN_OR_RETURN(const auto channel, MakeChannel(server, authorities, std::nullopt));
    const absl::Status joined = AskForCertificate(channel, request, token.authorities);
    if (!joined.ok()) {
      if (!absl::IsUnavailable(joined) && !absl::IsCancelled(joined)) ++refusals_;
      return Annotate(joined, absl::StrCat("joining the yard at ", server));
    }
    spdlog::info("joined the yard at {}; the file with the join token is not needed any more",
                 server);
    return absl::OkStatus();
  }

  // Fills in what is asked for, and keeps the answer.
  absl::Status AskForCertificate(const std::shared_ptr<grpc::Channel>& channel,
                                 v1::JoinRequest& request, const std::string& authorities) {
    TY_ASSIGN_OR_RETURN(*request.mutable_signing_request(), options_.certificate->SigningRequest());
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kJoinTimeout));
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return absl::CancelledError("stopping");
      joining_ = &context;
    }
    v1::JoinResponse response;
    const grpc::Status status =
        v1::ExecutorService::NewStub(channel)->Join(&context, request, &response);
    {
      absl::MutexLock lock(&mu_);
      joining_ = nullptr;
    }
    TY_RETURN_IF_ERROR(FromGrpc(status));
    return options_.certificate->Keep(response.certificate(), authorities);
  }

  // The certificate is renewed while a session goes on for weeks, and long before it ends.
  void KeepRenewed() {
    absl::Status last;
    while (!Stopping()) {
      Pause(options_.look_at_certificate);
      const absl::Status renewed = RenewIfDue();
      if (!renewed.ok() && renewed != last) {
        spdlog::warn("the certificate was not renewed: {}", renewed.ToString());
      }
      last = renewed;
    }
  }

  absl::Status RenewIfDue() {
    std::string server;
    {
      absl::MutexLock lock(&mu_);
      if (stopping_ || !registered_) return absl::OkStatus();
      server = server_;
    }
    const NodeCertificate& certificate = *options_.certificate;
    TY_ASSIGN_OR_RETURN(const NodeCertificate::Files files, certificate.Read(clock_.Now()));
    if (!files.should_renew) return absl::OkStatus();
    TY_ASSIGN_OR_RETURN(const auto channel, OpenChannel(server));
    v1::JoinRequest request;
    TY_RETURN_IF_ERROR(AskForCertificate(channel, request, files.authorities));
    spdlog::info("renewed the certificate of this node");
    return absl::OkStatus();
  }

  v1::Register Hello() {
    v1::Register hello = options_.hello;
    absl::MutexLock lock(&mu_);
    hello.mutable_running()->Add(running_.begin(), running_.end());
    return hello;
  }

  // Returns at once when a connection is refused, instead of waiting for gRPC's own retries.
  bool WaitUntilConnected(grpc::Channel& channel) {
    const absl::Duration deadline = clock_.SinceBoot() + kConnectTimeout;
    while (clock_.SinceBoot() < deadline && !Stopping()) {
      const grpc_connectivity_state state = channel.GetState(true);
      if (state == GRPC_CHANNEL_READY) return true;
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return false;
      channel.WaitForStateChange(state, absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
    }
    return false;
  }

  // Why the channel of `stub` could not connect (refused, or what TLS says of the other side): gRPC
  // tells calls alone.
  static std::string WhyNot(v1::ExecutorService::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(100)));
    return stub.Connect(&context)->Finish().error_message();
  }

  bool ReadAll(Stream& stream, const std::string& server, absl::Duration register_sent) {
    bool up = false;
    v1::ServerMessage message;
    while (stream.Read(&message)) {
      {
        absl::MutexLock lock(&mu_);
        heard_ = clock_.SinceBoot();
        registered_ = registered_ || message.has_welcome();
        refusals_ = 0;
      }
      LinkEvent event{.kind = up ? LinkEvent::kMessage : LinkEvent::kUp};
      if (!up) event.register_sent = register_sent;
      if (!up) event.server = server;
      if (!up && !message.has_welcome()) continue;
      up = true;
      event.message = std::move(message);
      deliver_(std::move(event));
      message.Clear();
    }
    return up;
  }

  void WriteOutgoing(Stream& stream) {
    for (;;) {
      v1::AgentMessage message;
      {
        absl::MutexLock lock(&mu_);
        const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return context_ == nullptr || !outgoing_.empty();
        };
        mu_.Await(absl::Condition(&ready));
        if (context_ == nullptr) return;
        message = std::move(outgoing_.front());
        outgoing_.pop_front();
      }
      // A broken stream shows when reading; the queue is emptied at the end of the session.
      stream.Write(message);
    }
  }

  bool Enter(grpc::ClientContext* context, const std::string& server) {
    absl::MutexLock lock(&mu_);
    if (stopping_) return false;
    context_ = context;
    server_ = server;
    heard_ = clock_.SinceBoot();
    return true;
  }

  void Leave() {
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
    registered_ = false;
    outgoing_.clear();
  }

  bool Stopping() {
    absl::MutexLock lock(&mu_);
    return stopping_;
  }

  void Pause(absl::Duration pause) {
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
  }

  const Options options_;
  Clock& clock_;
  const std::function<void(LinkEvent)> deliver_;

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) =
      nullptr;                               // of the session, while there is one
  std::string server_ ABSL_GUARDED_BY(mu_);  // with which it is
  grpc::ClientContext* joining_ ABSL_GUARDED_BY(mu_) = nullptr;  // of a call of Join under way
  absl::Duration heard_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  std::deque<v1::AgentMessage> outgoing_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::RankKey> running_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> refusals_ = 0;  // in a row, of joins and sessions
  std::thread renewing_;
  std::thread thread_;  // last: they use everything above
};

Link::Link(Options options, Clock& clock, std::function<void(LinkEvent)> deliver)
    : impl_(std::make_unique<Impl>(std::move(options), clock, std::move(deliver))) {}
Link::~Link() = default;
void Link::Send(v1::AgentMessage message) { impl_->Send(std::move(message)); }
void Link::SetRunning(std::vector<v1::RankKey> running) { impl_->SetRunning(std::move(running)); }
void Link::ResetIfSilentFor(absl::Duration limit) { impl_->ResetIfSilentFor(limit); }

}  // namespace trainyard
