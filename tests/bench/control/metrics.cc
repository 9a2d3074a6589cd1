#include <array>
#include <atomic>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/bench/control/load.h"
#include "trainyard/v1/executor_service.grpc.pb.h"

namespace trainyard::bench {
namespace {

constexpr int kReportsInFlight = 2;  // per rank

// The metrics of a training step, by name. Noise is a function of step and metric (SplitMix64).
constexpr std::array<const char*, 10> kNames = {
    "data_wait_ms",      "flops_per_second",   "grad_norm", "learning_rate",    "loss", "mfu",
    "peak_memory_bytes", "samples_per_second", "step_ms",   "tokens_per_second"};

double Noise(int64_t step, uint64_t metric) {
  uint64_t x = static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15 + metric * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((x ^ (x >> 31)) >> 11) / 9007199254740992.0;
}

double ValueOf(size_t metric, int64_t step) {
  const double noise = Noise(step, metric);
  const auto single = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  // Time is measured in nanoseconds, what the device computes is fp32.
  const double step_ms = 8 + static_cast<double>(static_cast<int64_t>(1e6 * Noise(step, 8))) / 1e6;
  switch (metric) {
    case 0:
      return static_cast<double>(static_cast<int64_t>(2e5 * noise)) / 1e6;
    case 1:
      return 6.0e12 / step_ms;
    case 2:
      return single(0.5 + noise);
    case 3:
      return single(1e-3 * (1 - static_cast<double>(step) / 1e7));
    case 4:
      return single(1.5 + 0.2 * noise);
    case 5:
      return 3.0 / step_ms;
    case 6:
      return 7.5e10;
    case 7:
      return 128e3 / step_ms;
    case 8:
      return step_ms;
    default:
      return 128e6 / step_ms;
  }
}

struct Shared {
  std::atomic<bool> stopping = false;
  std::atomic<int> ranks = 0;
  std::atomic<int64_t> acknowledged = 0;  // points
  std::atomic<int> refused = 0;
  std::atomic<int> ended = 0;  // nodes
};

// One agent on a thread of its own: everything that it sends answers something that it reads.
class Node {
 public:
  Node(const Target& target, const MetricOptions& options, int number, Shared& shared)
      : options_(options), shared_(shared), stub_(v1::ExecutorService::NewStub(Dial(target))) {
    AddToken(target, context_);
    context_.set_wait_for_ready(true);
    v1::Register& me = *hello_.mutable_register_();
    me.set_node(absl::StrFormat("metric-%04d", number));
    me.set_incarnation(absl::StrCat("bench-", absl::ToUnixNanos(absl::Now()), "-", number));
    me.set_address("127.0.0.1");
    me.set_agent_version("bench");
    me.set_protocol_version(1);
    for (int i = 0; i < options.slots; ++i) {
      v1::Slot& slot = *me.add_slots();
      slot.set_index(i);
      slot.set_device(v1::Resources::CPU);
      slot.set_model("null");
      slot.set_memory_bytes(int64_t{64} << 30);
      slot.set_cpu_threads(1);
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~Node() { thread_.join(); }

  void Cancel() { context_.TryCancel(); }

 private:
  struct Rank {
    v1::RankKey key;
    int64_t sequence = 0;
    int64_t step = 0;
    int64_t acknowledged = 0;
  };

  void Run() {
    stream_ = stub_->Connect(&context_);
    stream_->Write(hello_);
    v1::ServerMessage message;
    while (stream_->Read(&message)) {
      if (message.has_welcome() && !message.welcome().metric_columns()) {
        std::cerr << "the server takes no columns\n";
        break;
      }
      if (message.has_desired()) Begin(message.desired());
      if (message.has_ack()) Take(message.ack());
      Beat();
    }
    const bool early = !shared_.stopping;
    shared_.ended++;
    context_.TryCancel();
    const grpc::Status status = stream_->Finish();
    if (early) std::cerr << "a session ended: " << status.error_message() << "\n";
  }

  void Begin(const v1::DesiredSet& set) {
    desired_version_ = set.version();
    for (const v1::Assignment& assignment : set.assignments()) {
      Rank& rank = ranks_[assignment.key().job_uid()];
      if (rank.sequence > 0) continue;
      rank.key = assignment.key();
      v1::AgentMessage message;
      *message.mutable_events()->mutable_key() = rank.key;
      v1::RankEvent& started = *message.mutable_events()->add_events();
      started.set_sequence(++rank.sequence);
      started.mutable_started()->set_pid(1);
      v1::RankEvent& restored = *message.mutable_events()->add_events();
      restored.set_sequence(++rank.sequence);
      restored.mutable_restored()->set_step(0);
      stream_->Write(message);
      shared_.ranks++;
    }
  }

  void Take(const v1::EventAck& ack) {
    Rank& rank = ranks_[ack.key().job_uid()];
    if (ack.fenced()) {
      shared_.refused++;
      return;
    }
    const int64_t points = ack.sequence() - 2;
    shared_.acknowledged += points - rank.acknowledged;
    rank.acknowledged = points;
    while (!shared_.stopping &&
           rank.step - rank.acknowledged < int64_t{kReportsInFlight} * options_.points &&
           (options_.steps == 0 || rank.step < options_.steps)) {
      Report(rank);
    }
  }

  void Report(Rank& rank) {
    v1::AgentMessage message;
    *message.mutable_events()->mutable_key() = rank.key;
    v1::RankEvent& event = *message.mutable_events()->add_events();
    event.set_sequence(rank.sequence + 1);
    v1::MetricColumns& columns = *event.mutable_columns();
    columns.set_split(v1::MetricPoint::TRAIN);
    const int64_t now = absl::ToUnixMicros(absl::Now());
    for (int i = 0; i < options_.points; ++i) {
      columns.add_steps(rank.step + 1 + i);
      // A step's time as its metrics tell it, to the microsecond.
      columns.add_time_deltas_us(
          i == 0 ? now : static_cast<int64_t>(1000 * ValueOf(8, rank.step + 1 + i)));
    }
    for (size_t metric = 0; metric < kNames.size(); ++metric) {
      v1::MetricColumns::Column& column = *columns.add_columns();
      column.set_name(kNames[metric]);
      for (int i = 0; i < options_.points; ++i) {
        column.add_values(ValueOf(metric, rank.step + 1 + i));
      }
    }
    rank.sequence += options_.points;
    rank.step += options_.points;
    stream_->Write(message);
  }

  void Beat() {
    if (absl::Now() < next_beat_) return;
    next_beat_ = absl::Now() + absl::Seconds(1);
    v1::AgentMessage message;
    message.mutable_heartbeat()->set_id(++beat_id_);
    message.mutable_heartbeat()->set_desired_version(desired_version_);
    for (const auto& [uid, rank] : ranks_) *message.mutable_heartbeat()->add_present() = rank.key;
    stream_->Write(message);
  }

  const MetricOptions& options_;
  Shared& shared_;
  std::unique_ptr<v1::ExecutorService::Stub> stub_;
  grpc::ClientContext context_;
  v1::AgentMessage hello_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ServerMessage>> stream_;
  std::map<std::string, Rank> ranks_;  // by job
  int64_t desired_version_ = 0;
  absl::Time next_beat_ = absl::Now();
  int64_t beat_id_ = 0;
  std::thread thread_;
};

}  // namespace

int RunMetrics(const Target& target, const MetricOptions& options) {
  Shared shared;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < options.nodes; ++i) {
    nodes.push_back(std::make_unique<Node>(target, options, i, shared));
  }
  const int64_t wanted = options.steps * options.nodes * options.slots;
  const absl::Time deadline = absl::Now() + absl::Minutes(9);
  // The first second with all ranks does not count: connections, and plans of statements that are
  // new.
  absl::Time began = absl::InfiniteFuture();
  int64_t before = 0;
  while (absl::Now() < deadline && shared.ended == 0 && shared.refused == 0) {
    absl::SleepFor(absl::Milliseconds(5));
    const absl::Time now = absl::Now();
    if (began == absl::InfiniteFuture() && shared.ranks == options.nodes * options.slots) {
      began = now + absl::Seconds(options.steps > 0 ? 0 : 1);
    }
    if (before == 0 && now >= began) before = shared.acknowledged;
    if (options.steps > 0 ? shared.acknowledged >= wanted
                          : now >= began + absl::Seconds(options.seconds)) {
      break;
    }
  }
  const int64_t after = shared.acknowledged;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  shared.stopping = true;
  const bool broke = shared.ended > 0 || shared.refused > 0;
  // What is under way is stored, too, before sizes are asked for.
  for (int64_t last = -1; !broke && last != shared.acknowledged;) {
    last = shared.acknowledged;
    absl::SleepFor(absl::Milliseconds(500));
  }
  for (const auto& node : nodes) node->Cancel();
  nodes.clear();
  const auto names = static_cast<int64_t>(kNames.size());
  std::cout << nlohmann::json{{"ranks", shared.ranks.load()},
                              {"values", shared.acknowledged * names},
                              {"values_per_second",
                               static_cast<double>((after - before) * names) / seconds},
                              {"seconds", seconds},
                              {"refused", shared.refused.load()},
                              {"broke", broke}}
                   .dump()
            << std::endl;
  return broke ? 1 : 0;
}

}  // namespace trainyard::bench
