#pragma once

// A real server on a loopback port over the memory store, and an agent that a test speaks for.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "server/api/server.h"
#include "storage/base/clock.h"
#include "storage/stores.h"
#include "trainyard/v1/access_service.grpc.pb.h"
#include "trainyard/v1/executor_service.grpc.pb.h"
#include "trainyard/v1/job_service.grpc.pb.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {

class MemoryStores;

inline constexpr char kAdminToken[] = "admin-0123456789abcdef0123456789abcdef";
inline constexpr char kAgentToken[] = "agent-0123456789abcdef0123456789abcdef";
inline constexpr absl::Duration kPatience = absl::Seconds(120);

// A small job that needs no file: its vocabulary is declared by the tokenizer.
v1::Job SmallJob(const std::string& job_id = "");

class Rig {
 public:
  // Heartbeats of watches after 100 ms, so that tests need not wait.
  static ServerOptions FastOptions();

  explicit Rig(const ServerOptions& options = FastOptions());
  Rig(std::unique_ptr<Stores> stores, const ServerOptions& options);
  ~Rig();

  Stores& stores() { return *stores_; }
  MemoryStores& memory();
  Server& server() { return *server_; }
  // Ends the server and starts another over the same stores.
  void Restart();
  std::shared_ptr<grpc::Channel> channel() { return channel_; }

  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::MetricService::Stub& metrics() { return *metrics_; }
  v1::LogService::Stub& logs() { return *logs_; }
  v1::CheckpointService::Stub& checkpoints() { return *checkpoints_; }
  v1::NodeService::Stub& nodes() { return *nodes_; }
  v1::InfoService::Stub& info() { return *info_; }
  v1::ExecutorService::Stub& executors() { return *executors_; }
  v1::AccessService::Stub& access() { return *access_; }

  // With credentials and a deadline.
  static std::unique_ptr<grpc::ClientContext> Context(const std::string& token = kAdminToken);

  // OK or a test failure.
  v1::Job Submit(const v1::Job& job, const std::string& request_id = "");
  v1::Job Get(const std::string& name);
  // Until `done` holds, by watching the feed; the job as it then is.
  v1::Job WaitFor(const std::string& name, const std::function<bool(const v1::Job&)>& done);

 private:
  void Connect();

  std::unique_ptr<Stores> stores_;
  const ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::MetricService::Stub> metrics_;
  std::unique_ptr<v1::LogService::Stub> logs_;
  std::unique_ptr<v1::CheckpointService::Stub> checkpoints_;
  std::unique_ptr<v1::NodeService::Stub> nodes_;
  std::unique_ptr<v1::InfoService::Stub> info_;
  std::unique_ptr<v1::ExecutorService::Stub> executors_;
  std::unique_ptr<v1::AccessService::Stub> access_;
};

// One session of an agent, driven by hand. A thread reads what the server says.
class ScriptedAgent {
 public:
  explicit ScriptedAgent(Rig& rig, const std::string& token = kAgentToken);
  ~ScriptedAgent();

  void Send(const v1::AgentMessage& message);
  void Register(const std::string& node, int slots, const std::string& incarnation = "i1",
                int64_t slot_bytes = int64_t{8} << 30,
                v1::Resources::Device device = v1::Resources::CPU,
                const std::map<std::string, std::string>& arithmetic = {});
  void Heartbeat(int64_t id, int64_t desired_version, const std::vector<v1::RankKey>& present = {});
  void SendEvents(const v1::RankKey& key, const std::vector<v1::RankEvent>& events);

  // The next message that `wanted` accepts; those before it are dropped. A test failure, and an
  // empty message, when none comes or the stream ends.
  v1::ServerMessage Next(const std::function<bool(const v1::ServerMessage&)>& wanted);
  // The same without a test failure.
  std::optional<v1::ServerMessage> TryNext(
      const std::function<bool(const v1::ServerMessage&)>& wanted);
  v1::DesiredSet NextDesired(int assignments);
  v1::EventAck NextAck();
  void Welcomed();

  // Waits until the server ended the stream.
  grpc::Status Finish();
  void Cancel() { context_->TryCancel(); }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ServerMessage>> stream_;
  absl::Mutex mu_;
  std::deque<v1::ServerMessage> incoming_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ = false;
  std::thread reader_;
};

// Events in the order in which a rank sends them.
class EventScript {
 public:
  explicit EventScript(int64_t first = 1) : next_(first) {}
  v1::RankEvent Started();
  v1::RankEvent Restored(int64_t step, const std::map<std::string, std::string>& arithmetic = {});
  v1::RankEvent Metrics(int64_t step, double loss);
  v1::RankEvent Checkpoint(int64_t step, const std::string& uri);
  v1::RankEvent Finished(int64_t step, bool suspended = false);
  v1::RankEvent Exited(int exit_code, int signal = 0);

 private:
  v1::RankEvent Next();
  int64_t next_;
};

}  // namespace trainyard
