#include "server/fleet/executor_service.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/tls/credentials.h"
#include "server/fleet/agent_session.h"
#include "server/fleet/decode.h"
#include "server/rpc/bridge.h"
#include "server/work/call_queue.h"
#include "storage/base/status.h"
#include "storage/call_limit.h"
#include "trainyard/v1/executor_service.grpc.pb.h"

namespace trainyard {
namespace {

constexpr size_t kMostPending = 4096;      // messages to an agent that does not read
constexpr size_t kLargestJoin = 16 << 10;  // bytes of a request
// Joining takes milliseconds of a server that has the token; what strangers ask waits in a line of
// its own, and is refused where that is full.
const CallQueueOptions kJoins = {.threads = 2,
                                 .most_of_one = 2,
                                 .most_waiting_bytes = 512 * int64_t{kLargestJoin},
                                 .least_bytes = kLargestJoin};

// Lives from Connect to OnDone, which gRPC calls once Finish was called and all else is over.
class ConnectStream : public grpc::ServerBidiReactor<v1::AgentMessage, v1::ServerMessage>,
                      public AgentLink {
 public:
  ConnectStream(grpc::CallbackServerContext& context, Fleet& fleet, Fleet::Admit admit,
                AuditLog& audit)
      : context_(context), audit_(audit) {
    session_ = fleet.Make(std::move(admit), *this);
  }

  // A copy: `this` may be gone once the session began.
  std::shared_ptr<AgentSession> session() const { return session_; }

  // AgentLink
  void Send(const v1::ServerMessage& message) override {
    absl::MutexLock lock(&mu_);
    if (finish_.has_value()) return;
    pending_.push_back(message);
    if (pending_.size() == kMostPending) context_.TryCancel();
    if (pending_.size() == 1) StartWrite(&pending_.front());
  }
  void ReadNext() override { StartRead(&incoming_); }
  void Finish(const absl::Status& status) override {
    // Who is not admitted, may not register as it wants to, or may no longer.
    audit_.Record({.source = SourceOf(context_.peer()), .method = "Connect"}, status, false);
    {
      absl::MutexLock lock(&mu_);
      finish_ = ToGrpc(status);
      if (!pending_.empty()) {
        pending_.resize(1);  // what is being written stays; OnWriteDone goes on
        return;
      }
    }
    ServerBidiReactor::Finish(ToGrpc(status));
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      session_->Receive(std::move(incoming_));
    } else {
      session_->Leave();
    }
  }
  void OnWriteDone(bool ok) override {
    std::optional<grpc::Status> finish;
    {
      absl::MutexLock lock(&mu_);
      pending_.pop_front();
      if (finish_.has_value()) {
        finish = finish_;
      } else if (!ok) {
        pending_.clear();
      } else if (!pending_.empty()) {
        StartWrite(&pending_.front());
      }
    }
    if (finish.has_value()) return ServerBidiReactor::Finish(*finish);
    if (!ok) session_->Leave();
  }
  void OnCancel() override {
    std::shared_ptr<AgentSession> session = session_;
    session->Leave();
  }
  void OnDone() override { delete this; }

  grpc::CallbackServerContext& context_;
  AuditLog& audit_;
  std::shared_ptr<AgentSession> session_;
  v1::AgentMessage incoming_;  // of the one read under way
  absl::Mutex mu_;
  std::deque<v1::ServerMessage> pending_ ABSL_GUARDED_BY(mu_);  // the first is being written
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mu_);
};

class ExecutorServiceBase : public v1::ExecutorService::CallbackService {
 public:
  ExecutorServiceBase(Fleet& fleet, AuditLog& audit) : fleet_(fleet), audit_(audit) {}

  grpc::ServerBidiReactor<v1::AgentMessage, v1::ServerMessage>* Connect(
      grpc::CallbackServerContext* context) override {
    const auto session = std::make_shared<std::weak_ptr<AgentSession>>();
    auto* stream = new ConnectStream(*context, fleet_, AdmitterOf(*context, session),
                                     audit_);  // deletes itself in OnDone
    *session = stream->session();
    fleet_.Begin(stream->session());
    return stream;
  }

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest*,
                                 v1::JoinResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();  // once per call
    reactor->Finish(ToGrpc(absl::FailedPreconditionError(
        "nobody joins here: machines join at the port of a server that is for agents alone, if it "
        "was started with one (--listen-agents)")));
    return reactor;
  }

 protected:
  // Set before it is asked for anything.
  using SessionToBe = std::shared_ptr<std::weak_ptr<AgentSession>>;

  // What is asked later must not refer to the context, which may be gone by then.
  virtual Fleet::Admit AdmitterOf(const grpc::CallbackServerContext& context,
                                  const SessionToBe& session) = 0;

  AuditLog& audit() { return audit_; }

 private:
  Fleet& fleet_;
  AuditLog& audit_;
};

// Agents show a token, and may then register under any name.
class ServiceByToken final : public ExecutorServiceBase {
 public:
  ServiceByToken(Fleet& fleet, Authenticator& authenticator, AuditLog& audit)
      : ExecutorServiceBase(fleet, audit), authenticator_(authenticator) {}

 private:
  Fleet::Admit AdmitterOf(const grpc::CallbackServerContext& context,
                          const SessionToBe& session) override {
    return [this, shown = AuthorizationOf(context), session,
            guard = std::make_shared<std::shared_ptr<void>>()]()
               -> absl::StatusOr<std::optional<NodeKey>> {
      TY_ASSIGN_OR_RETURN(Authenticator::Guarded admitted,
                          authenticator_.AdmitStream(
                              shown, Permission::kRunJobs, [session](const absl::Status& why) {
                                const std::shared_ptr<AgentSession> open = session->lock();
                                if (open != nullptr) open->EndWith(why);
                              }));
      *guard = std::move(admitted.guard);
      return std::nullopt;
    };
  }

  Authenticator& authenticator_;
};

// Agents show the certificate that they got when they joined.
class ServiceByCertificate final : public ExecutorServiceBase {
 public:
  ServiceByCertificate(Fleet& fleet, NodeAdmission& admission, AuditLog& audit)
      : ExecutorServiceBase(fleet, audit), admission_(admission), joins_(kJoins) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const size_t bytes = request->ByteSizeLong();
    if (bytes > kLargestJoin) {
      reactor->Finish(ToGrpc(absl::InvalidArgumentError(
          absl::StrCat("a request of ", bytes, " bytes, expected at most ", kLargestJoin))));
      return reactor;
    }
    QueuedCall call{.bytes = static_cast<int64_t>(bytes)};
    call.run = [=, this] {
      if (context->IsCancelled()) {  // gone while it waited for its turn
        return reactor->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone"));
      }
      const CallLimit limit(kUserCallLimit);
      const absl::Status joined = Join(*request, PeerCertificate(*context), *response);
      // Whatever ends it in vain is a refusal here; a store that is away is none.
      if (!absl::IsUnavailable(joined)) {
        audit().Record(
            {.principal = joined.ok() ? "node:" + response->node() : "",
             .source = SourceOf(context->peer()),
             .method = "Join",
             .resource = absl::StrCat("nodes/", joined.ok() ? response->node() : request->node()),
             .detail = request->token().empty() ? "renewed its certificate" : "joined"},
            joined.ok() ? joined : absl::PermissionDeniedError(joined.message()), true);
      }
      reactor->Finish(ToGrpc(joined));
    };
    call.refuse = [reactor](const absl::Status&) {
      reactor->Finish(ToGrpc(absl::UnavailableError("too many ask to join just now; try again")));
    };
    joins_.Post("", std::move(call));
    return reactor;
  }

 private:
  absl::Status Join(const v1::JoinRequest& request, const std::string& shown,
                    v1::JoinResponse& response) {
    NodeAdmission::Admitted admitted;
    if (request.token().empty()) {
      TY_ASSIGN_OR_RETURN(admitted, admission_.Renew(shown, request.signing_request()));
    } else {
      TY_ASSIGN_OR_RETURN(const JoinerIdentity joiner, DecodeJoin(request));
      TY_ASSIGN_OR_RETURN(admitted, admission_.Join(request.token(), request.signing_request(),
                                                    joiner.node, joiner.node_uid));
      spdlog::info("nodes/{}: joined with join token {}", joiner.node, admitted.key.token_id);
    }
    response.set_certificate(admitted.certificate);
    response.set_node(admitted.key.node);
    response.set_node_uid(admitted.key.node_uid);
    response.set_pool(admitted.key.pool);
    return absl::OkStatus();
  }

  Fleet::Admit AdmitterOf(const grpc::CallbackServerContext& context, const SessionToBe&) override {
    return [this, shown = PeerCertificate(context)]() -> absl::StatusOr<std::optional<NodeKey>> {
      return admission_.Recognize(shown);
    };
  }

  NodeAdmission& admission_;
  CallQueue joins_;  // last: its calls use the rest
};

// On the port for users of a server that has one for agents.
class ServiceElsewhere final : public ExecutorServiceBase {
 public:
  using ExecutorServiceBase::ExecutorServiceBase;

 private:
  Fleet::Admit AdmitterOf(const grpc::CallbackServerContext&, const SessionToBe&) override {
    return []() -> absl::StatusOr<std::optional<NodeKey>> {
      return absl::UnimplementedError(
          "agents of this yard connect to the server's port for agents (--listen-agents), with the "
          "certificate that they get when they join");
    };
  }
};

}  // namespace

std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, Authenticator& authenticator,
                                                   AuditLog& audit) {
  return std::make_shared<ServiceByToken>(fleet, authenticator, audit);
}

std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, NodeAdmission& admission,
                                                   AuditLog& audit) {
  return std::make_shared<ServiceByCertificate>(fleet, admission, audit);
}

std::shared_ptr<grpc::Service> MakeExecutorServiceElsewhere(Fleet& fleet, AuditLog& audit) {
  return std::make_shared<ServiceElsewhere>(fleet, audit);
}

}  // namespace trainyard
