#include "server/fleet/executor_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "server/fleet/agent_session.h"
#include "server/rpc/bridge.h"
#include "trainyard/v1/executor_service.grpc.pb.h"

namespace trainyard {
namespace {

constexpr size_t kMostPending = 4096;  // messages to an agent that does not read

// Lives from Connect to OnDone, which gRPC calls once Finish was called and all else is over.
class ConnectStream : public grpc::ServerBidiReactor<v1::AgentMessage, v1::ServerMessage>,
                      public AgentLink {
 public:
  ConnectStream(grpc::CallbackServerContext& context, Fleet& fleet, Authenticator& authenticator)
      : context_(context) {
    const std::string authorization = AuthorizationOf(context);
    session_ = fleet.Make(
        [&authenticator, authorization] {
          return authenticator.Admit(authorization, Permission::kRunJobs);
        },
        *this);
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
  std::shared_ptr<AgentSession> session_;
  v1::AgentMessage incoming_;  // of the one read under way
  absl::Mutex mu_;
  std::deque<v1::ServerMessage> pending_ ABSL_GUARDED_BY(mu_);  // the first is being written
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mu_);
};

class ExecutorService final
    : public v1::ExecutorService::WithCallbackMethod_Connect<v1::ExecutorService::Service> {
 public:
  ExecutorService(Fleet& fleet, Authenticator& authenticator)
      : fleet_(fleet), authenticator_(authenticator) {}

  grpc::ServerBidiReactor<v1::AgentMessage, v1::ServerMessage>* Connect(
      grpc::CallbackServerContext* context) override {
    auto* stream = new ConnectStream(*context, fleet_, authenticator_);  // deletes itself in OnDone
    fleet_.Begin(stream->session());
    return stream;
  }

 private:
  Fleet& fleet_;
  Authenticator& authenticator_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, Authenticator& authenticator) {
  return std::make_shared<ExecutorService>(fleet, authenticator);
}

}  // namespace trainyard
