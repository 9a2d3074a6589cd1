#include "tests/unit/agent/fake_server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/run/run_directory.h"
#include "storage/base/status.h"
#include "trainyard/v1/executor_service.grpc.pb.h"

namespace trainyard {

namespace {

// An event as the points that it stands for.
std::vector<v1::RankEvent> PointsOf(const v1::RankEvent& event) {
  if (!event.has_columns()) return {event};
  std::vector<v1::RankEvent> points;
  const v1::MetricColumns& columns = event.columns();
  int64_t time_us = 0;
  for (int i = 0; i < columns.steps_size(); ++i) {
    v1::RankEvent& point = points.emplace_back();
    point.set_sequence(event.sequence() + i);
    point.set_time_us(time_us += columns.time_deltas_us(i));
    point.mutable_metrics()->set_step(columns.steps(i));
    point.mutable_metrics()->set_split(columns.split());
    for (const auto& column : columns.columns()) {
      (*point.mutable_metrics()->mutable_values())[column.name()] = column.values(i);
    }
  }
  return points;
}

}  // namespace

using Stream = grpc::ServerReaderWriter<v1::ServerMessage, v1::AgentMessage>;

class FakeServer::Service : public v1::ExecutorService::Service {
 public:
  explicit Service(FakeServer& owner) : owner_(owner) {}

  // Returns the bound port.
  int Start(int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    TY_CHECK(server_ != nullptr, "cannot listen on port ", port);
    return port;
  }

  void Stop() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  void Write(const v1::ServerMessage& message) {
    absl::MutexLock lock(&streams_mu_);
    for (Stream* stream : streams_) stream->Write(message);
  }

  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override {
    v1::AgentMessage message;
    if (!stream->Read(&message) || !message.has_register_()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "register first");
    }
    const auto token = context->client_metadata().find("authorization");
    std::vector<v1::ServerMessage> answers(2);
    {
      absl::MutexLock lock(&owner_.mu_);
      owner_.sessions_.push_back(message.register_());
      if (token != context->client_metadata().end()) {
        owner_.last_token_ = std::string(token->second.data(), token->second.size());
      }
      *answers[0].mutable_welcome() = owner_.terms_;
      owner_.last_heartbeat_.reset();
      answers[1].mutable_desired()->set_version(owner_.version_);
      answers[1].mutable_desired()->mutable_assignments()->Add(owner_.wanted_.begin(),
                                                               owner_.wanted_.end());
      if (!owner_.send_sets_) answers.pop_back();
    }
    {
      absl::MutexLock lock(&streams_mu_);
      for (const v1::ServerMessage& answer : answers) stream->Write(answer);
      streams_.insert(stream);
    }
    while (stream->Read(&message)) {
      answers.clear();
      {
        absl::MutexLock lock(&owner_.mu_);
        owner_.Handle(message, answers);
      }
      absl::MutexLock lock(&streams_mu_);
      for (const v1::ServerMessage& answer : answers) stream->Write(answer);
    }
    absl::MutexLock lock(&streams_mu_);
    streams_.erase(stream);
    return grpc::Status::OK;
  }

 private:
  FakeServer& owner_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex streams_mu_;  // also one write at a time
  std::set<Stream*> streams_ ABSL_GUARDED_BY(streams_mu_);
};

FakeServer::FakeServer() : service_(std::make_unique<Service>(*this)) {
  terms_.set_heartbeat_ms(50);
  terms_.set_lease_ms(30'000);
  terms_.set_self_fence_ms(25'000);
  terms_.set_protocol_version(1);
  port_ = service_->Start(0);
}

FakeServer::~FakeServer() { Stop(); }

std::string FakeServer::address() const { return absl::StrCat("127.0.0.1:", port_); }

void FakeServer::Stop() {
  if (service_ != nullptr) service_->Stop();
  service_.reset();
  absl::MutexLock lock(&mu_);
  last_heartbeat_.reset();  // of a session that is over
}

void FakeServer::Start() {
  service_ = std::make_unique<Service>(*this);
  service_->Start(port_);
}

void FakeServer::SetTerms(const v1::Welcome& terms) {
  absl::MutexLock lock(&mu_);
  terms_ = terms;
}

void FakeServer::AckHeartbeats(bool on) {
  absl::MutexLock lock(&mu_);
  ack_heartbeats_ = on;
}

void FakeServer::AckEvents(bool on) {
  absl::MutexLock lock(&mu_);
  ack_events_ = on;
}

void FakeServer::FenceEvents(bool on) {
  absl::MutexLock lock(&mu_);
  fence_events_ = on;
}

void FakeServer::SendSets(bool on) {
  absl::MutexLock lock(&mu_);
  send_sets_ = on;
}

void FakeServer::Want(const std::vector<v1::Assignment>& assignments) {
  v1::ServerMessage message;
  {
    absl::MutexLock lock(&mu_);
    wanted_ = assignments;
    message.mutable_desired()->set_version(++version_);
    message.mutable_desired()->mutable_assignments()->Add(wanted_.begin(), wanted_.end());
  }
  if (service_ != nullptr) service_->Write(message);
}

void FakeServer::Free(const v1::LeftState& state) {
  v1::ServerMessage message;
  *message.mutable_free()->add_states() = state;
  service_->Write(message);
}

v1::LogChunk FakeServer::AskForLog(const v1::RankKey& key, int64_t offset, int64_t max_bytes) {
  v1::ServerMessage message;
  v1::LogRequest& request = *message.mutable_log();
  {
    absl::MutexLock lock(&mu_);
    request.set_request_id(absl::StrCat(next_request_++));
  }
  *request.mutable_key() = key;
  request.set_offset(offset);
  request.set_max_bytes(max_bytes);
  service_->Write(message);
  v1::LogChunk chunk;
  chunk.set_error("no answer");
  WaitFor([&] {
    const auto it = chunks_.find(request.request_id());
    if (it == chunks_.end()) return false;
    chunk = it->second;
    return true;
  });
  return chunk;
}

bool FakeServer::WaitFor(const std::function<bool()>& condition) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&condition), kPatience);
}

bool FakeServer::Runs(const std::vector<std::string>& ranks) const {
  if (!last_heartbeat_ || last_heartbeat_->desired_version() != version_) return false;
  std::set<std::string> present;
  for (const v1::RankKey& key : last_heartbeat_->present()) {
    present.insert(run::RunDirectory::NameOf(key));
  }
  return present == std::set<std::string>(ranks.begin(), ranks.end());
}

std::optional<std::vector<v1::RankEvent>> FakeServer::WaitForEnd(const std::string& rank) {
  std::optional<std::vector<v1::RankEvent>> events;
  WaitFor([&] {
    if (events_[rank].empty() || !events_[rank].back().has_exited()) return false;
    events = events_[rank];
    return true;
  });
  return events;
}

// The store's rules: what it has is skipped, the next one is taken, a gap is refused.
void FakeServer::Handle(const v1::AgentMessage& message, std::vector<v1::ServerMessage>& answers) {
  if (message.has_heartbeat()) {
    last_heartbeat_ = message.heartbeat();
    if (ack_heartbeats_) {
      answers.emplace_back().mutable_lease()->set_heartbeat_id(message.heartbeat().id());
    }
  } else if (message.has_leaving()) {
    leaving_ = message.leaving();
  } else if (message.has_log()) {
    chunks_[message.log().request_id()] = message.log();
  } else if (message.has_events()) {
    std::vector<v1::RankEvent>& stored = events_[run::RunDirectory::NameOf(message.events().key())];
    for (const v1::RankEvent& sent : message.events().events()) {
      if (sent.has_columns()) ++columns_;
      for (const v1::RankEvent& event : PointsOf(sent)) {
        const int64_t next = stored.empty() ? 1 : stored.back().sequence() + 1;
        if (event.sequence() < next) ++repeats_;
        if (event.sequence() > next) ++gaps_;
        if (event.sequence() == next) stored.push_back(event);
      }
    }
    if (ack_events_) {
      v1::EventAck& ack = *answers.emplace_back().mutable_ack();
      *ack.mutable_key() = message.events().key();
      ack.set_sequence(stored.empty() ? 0 : stored.back().sequence());
      ack.set_fenced(fence_events_);
    }
  }
}

}  // namespace trainyard
