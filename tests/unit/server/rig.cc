#include "tests/unit/server/rig.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "storage/base/digest.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

v1::Job SmallJob(const std::string& job_id) {
  v1::Job job;
  job.set_job_id(job_id);
  v1::JobSpec& spec = *job.mutable_spec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(1);
  gpt.set_heads(1);
  gpt.set_width(16);
  gpt.set_context(8);
  spec.mutable_data()->mutable_text()->set_path("/nowhere/text.txt");
  spec.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::BYTES);
  spec.mutable_training()->set_steps(3);
  spec.mutable_training()->set_batch_size(4);
  spec.mutable_optimizer()->mutable_adamw();
  spec.mutable_retry()->set_backoff_seconds(0);
  return job;
}

ServerOptions Rig::FastOptions() {
  ServerOptions options{.listen = "127.0.0.1:0"};
  options.replica = "test";
  options.schema_version = 7;
  options.fleet.checkpoint_root = "file:///checkpoints";
  options.watch.heartbeat = absl::Milliseconds(100);
  options.sizer.program = TRAINYARD_SIZER;
  // Under a sanitizer, on a slow machine, all meshes are looked at all the same.
  options.sizer.planning.time = absl::Seconds(20);
  options.sizer.longest_search = absl::Seconds(15);
  return options;
}

Rig::Rig(const ServerOptions& options)
    : Rig(std::make_unique<MemoryStores>(SystemClock()), options) {}

Rig::Rig(std::unique_ptr<Stores> stores, const ServerOptions& options)
    : stores_(std::move(stores)), options_(options) {
  spdlog::set_level(spdlog::level::err);
  EXPECT_TRUE(stores_->tokens().AddToken(Sha256Hex(kAdminToken), {"user:ann", "admin"}).ok());
  EXPECT_TRUE(stores_->tokens().AddToken(Sha256Hex(kAgentToken), {"agent:n", "agent"}).ok());
  Connect();
}

Rig::~Rig() = default;

MemoryStores& Rig::memory() { return static_cast<MemoryStores&>(*stores_); }

void Rig::Restart() {
  server_.reset();
  Connect();
}

void Rig::Connect() {
  auto server = Server::Start(*stores_, SystemClock(), options_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                       grpc::InsecureChannelCredentials(), arguments);
  jobs_ = v1::JobService::NewStub(channel_);
  metrics_ = v1::MetricService::NewStub(channel_);
  logs_ = v1::LogService::NewStub(channel_);
  checkpoints_ = v1::CheckpointService::NewStub(channel_);
  nodes_ = v1::NodeService::NewStub(channel_);
  info_ = v1::InfoService::NewStub(channel_);
  executors_ = v1::ExecutorService::NewStub(channel_);
  access_ = v1::AccessService::NewStub(channel_);
}

std::unique_ptr<grpc::ClientContext> Rig::Context(const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  return context;
}

v1::Job Rig::Submit(const v1::Job& job, const std::string& request_id) {
  v1::SubmitJobRequest request;
  request.set_parent("projects/default");
  request.set_request_id(request_id);
  *request.mutable_job() = job;
  v1::Job response;
  const grpc::Status status = jobs().SubmitJob(Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

v1::Job Rig::Get(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::Job response;
  const grpc::Status status = jobs().GetJob(Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

v1::Job Rig::WaitFor(const std::string& name, const std::function<bool(const v1::Job&)>& done) {
  v1::WatchJobRequest request;
  request.set_name(name);
  const auto context = Context();
  const auto stream = jobs().WatchJob(context.get(), request);
  v1::WatchJobResponse response;
  while (true) {
    v1::Job job = Get(name);
    if (done(job)) {
      context->TryCancel();
      return job;
    }
    if (!stream->Read(&response)) {
      ADD_FAILURE() << "did not come: " << job.ShortDebugString() << "; "
                    << stream->Finish().error_message();
      return job;
    }
  }
}

ScriptedAgent::ScriptedAgent(Rig& rig, const std::string& token)
    : context_(Rig::Context(token)), stream_(rig.executors().Connect(context_.get())) {
  reader_ = std::thread([this] {
    v1::ServerMessage message;
    while (stream_->Read(&message)) {
      absl::MutexLock lock(&mu_);
      incoming_.push_back(message);
    }
    absl::MutexLock lock(&mu_);
    ended_ = true;
  });
}

ScriptedAgent::~ScriptedAgent() {
  context_->TryCancel();
  Finish();
}

void ScriptedAgent::Send(const v1::AgentMessage& message) { stream_->Write(message); }

void ScriptedAgent::Register(const std::string& node, int slots, const std::string& incarnation,
                             int64_t slot_bytes, v1::Resources::Device device,
                             const std::map<std::string, std::string>& arithmetic) {
  v1::AgentMessage message;
  v1::Register& registration = *message.mutable_register_();
  registration.set_node(node);
  registration.set_incarnation(incarnation);
  registration.set_address("127.0.0.1");
  registration.set_protocol_version(1);
  for (int i = 0; i < slots; ++i) {
    v1::Slot& slot = *registration.add_slots();
    slot.set_index(i);
    slot.set_device(device);
    slot.set_memory_bytes(slot_bytes);
    slot.set_cpu_threads(1);
    if (arithmetic.empty()) continue;
    slot.mutable_arithmetic()->mutable_values()->insert(arithmetic.begin(), arithmetic.end());
  }
  Send(message);
}

void ScriptedAgent::Heartbeat(int64_t id, int64_t desired_version,
                              const std::vector<v1::RankKey>& present) {
  v1::AgentMessage message;
  message.mutable_heartbeat()->set_id(id);
  message.mutable_heartbeat()->set_desired_version(desired_version);
  for (const v1::RankKey& key : present) *message.mutable_heartbeat()->add_present() = key;
  Send(message);
}

void ScriptedAgent::SendEvents(const v1::RankKey& key, const std::vector<v1::RankEvent>& events) {
  v1::AgentMessage message;
  *message.mutable_events()->mutable_key() = key;
  for (const v1::RankEvent& event : events) *message.mutable_events()->add_events() = event;
  Send(message);
}

v1::ServerMessage ScriptedAgent::Next(const std::function<bool(const v1::ServerMessage&)>& wanted) {
  std::optional<v1::ServerMessage> message = TryNext(wanted);
  if (message.has_value()) return *std::move(message);
  absl::MutexLock lock(&mu_);
  ADD_FAILURE() << "the message did not come" << (ended_ ? ", the stream ended" : "");
  return {};
}

std::optional<v1::ServerMessage> ScriptedAgent::TryNext(
    const std::function<bool(const v1::ServerMessage&)>& wanted) {
  const absl::Time deadline = absl::Now() + kPatience;
  absl::MutexLock lock(&mu_);
  const auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ended_ || !incoming_.empty();
  };
  while (mu_.AwaitWithDeadline(absl::Condition(&something), deadline)) {
    if (incoming_.empty()) break;
    v1::ServerMessage message = std::move(incoming_.front());
    incoming_.pop_front();
    if (wanted(message)) return message;
  }
  return std::nullopt;
}

v1::DesiredSet ScriptedAgent::NextDesired(int assignments) {
  return Next([&](const v1::ServerMessage& message) {
           return message.has_desired() && message.desired().assignments_size() == assignments;
         })
      .desired();
}

v1::EventAck ScriptedAgent::NextAck() {
  return Next([](const v1::ServerMessage& message) { return message.has_ack(); }).ack();
}

void ScriptedAgent::Welcomed() {
  Next([](const v1::ServerMessage& message) { return message.has_welcome(); });
}

grpc::Status ScriptedAgent::Finish() {
  if (finished_) return grpc::Status::OK;
  finished_ = true;
  reader_.join();
  return stream_->Finish();
}

v1::RankEvent EventScript::Next() {
  v1::RankEvent event;
  event.set_sequence(next_++);
  event.set_time_us(absl::ToUnixMicros(absl::Now()));
  return event;
}

v1::RankEvent EventScript::Started() {
  v1::RankEvent event = Next();
  event.mutable_started()->set_pid(7);
  event.mutable_started()->set_device("cpu x1");
  return event;
}

v1::RankEvent EventScript::Restored(int64_t step,
                                    const std::map<std::string, std::string>& arithmetic) {
  v1::RankEvent event = Next();
  event.mutable_restored()->set_step(step);
  event.mutable_restored()->mutable_arithmetic()->insert(arithmetic.begin(), arithmetic.end());
  return event;
}

v1::RankEvent EventScript::Metrics(int64_t step, double loss) {
  v1::RankEvent event = Next();
  event.mutable_metrics()->set_step(step);
  event.mutable_metrics()->set_split(v1::MetricPoint::TRAIN);
  (*event.mutable_metrics()->mutable_values())["loss"] = loss;
  return event;
}

v1::RankEvent EventScript::Checkpoint(int64_t step, const std::string& uri) {
  v1::RankEvent event = Next();
  event.mutable_checkpoint()->set_step(step);
  event.mutable_checkpoint()->set_uri(uri);
  event.mutable_checkpoint()->set_bytes(100);
  event.mutable_checkpoint()->set_manifest_sha256(std::string(64, 'a'));
  event.mutable_checkpoint()->set_weights_sha256(std::string(64, 'b'));
  return event;
}

v1::RankEvent EventScript::Finished(int64_t step, bool suspended) {
  v1::RankEvent event = Next();
  event.mutable_finished()->set_step(step);
  event.mutable_finished()->set_outcome(suspended ? v1::RankEvent::Finished::SUSPENDED
                                                  : v1::RankEvent::Finished::SUCCEEDED);
  return event;
}

v1::RankEvent EventScript::Exited(int exit_code, int signal) {
  v1::RankEvent event = Next();
  event.mutable_exited()->set_exit_code(exit_code);
  event.mutable_exited()->set_signal(signal);
  return event;
}

}  // namespace trainyard
