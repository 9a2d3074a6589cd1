#include <algorithm>
#include <atomic>
#include <deque>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/bench/control/load.h"
#include "trainyard/v1/executor_service.grpc.pb.h"

namespace trainyard::bench {
namespace {

using Key = std::pair<std::string, std::pair<int64_t, int>>;  // job, attempt, rank

Key KeyOf(const v1::RankKey& key) { return {key.job_uid(), {key.attempt(), key.rank()}}; }

// What all agents saw. Thread-safe.
class Tally {
 public:
  void Finished() {
    absl::MutexLock lock(&mu_);
    ++finished_;
    last_ = absl::Now();
  }
  void Acknowledged(absl::Duration late) {
    absl::MutexLock lock(&mu_);
    late_ms_.push_back(absl::ToDoubleMilliseconds(late));
  }
  void Registered() { ++registered_; }
  void Stored(int64_t events) {
    absl::MutexLock lock(&mu_);
    stored_ += events;
    last_stored_ = absl::Now();
  }
  int64_t stored() {
    absl::MutexLock lock(&mu_);
    return stored_;
  }
  // Waits until `count` events were acknowledged; the time at which the last one was.
  absl::Time AwaitStored(int64_t count, absl::Duration limit) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stored_ >= count; };
    mu_.AwaitWithTimeout(absl::Condition(&reached), limit);
    return last_stored_;
  }
  void SessionEnded() { ++ended_; }

  // Waits until `count` ranks finished; answers with how many did, and when the last of them.
  nlohmann::json Reach(int64_t count, absl::Duration limit) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return finished_ >= count; };
    mu_.AwaitWithTimeout(absl::Condition(&reached), limit);
    return {{"finished", finished_}, {"at", absl::ToUnixMicros(last_) / 1e6}};
  }

  nlohmann::json Stats(double overdue_ms) {
    absl::MutexLock lock(&mu_);
    std::vector<double> late;
    late.swap(late_ms_);
    if (overdue_ms > 0) late.push_back(overdue_ms);
    nlohmann::json stats = {{"finished", finished_},
                            {"registered", registered_.load()},
                            {"sessions_ended", ended_.load()},
                            {"stored", stored_},
                            {"heartbeats", late.size()},
                            {"late_ms_p50", Quantile(late, 0.5)},
                            {"late_ms_p999", Quantile(late, 0.999)},
                            {"late_ms_max", Quantile(late, 1)}};
    return stats;
  }

 private:
  absl::Mutex mu_;
  int64_t finished_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mu_);
  int64_t stored_ ABSL_GUARDED_BY(mu_) = 0;  // events that were acknowledged
  absl::Time last_stored_ ABSL_GUARDED_BY(mu_);
  std::vector<double> late_ms_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> registered_ = 0;
  std::atomic<int> ended_ = 0;
};

// One agent: one stream, as executor/agent speaks it, and workers that do their whole life at once.
class NullAgent : public grpc::ClientBidiReactor<v1::AgentMessage, v1::ServerMessage> {
 public:
  NullAgent(const Target& target, const AgentOptions& options, int number, Tally& tally)
      : options_(options),
        tally_(tally),
        stub_(v1::ExecutorService::NewStub(Dial(target, Peer::kAgent))) {
    AddToken(target, context_);
    v1::AgentMessage hello;
    v1::Register& me = *hello.mutable_register_();
    me.set_node(absl::StrFormat("%s%04d", options.prefix, number));
    me.set_incarnation(absl::StrCat("bench-", absl::ToUnixNanos(absl::Now()), "-", number));
    me.set_address("127.0.0.1");
    me.set_agent_version("bench");
    me.set_protocol_version(1);
    for (int i = 0; i < options.slots; ++i) {
      v1::Slot& slot = *me.add_slots();
      slot.set_index(i);
      slot.set_device(options.device == "CUDA" ? v1::Resources::CUDA : v1::Resources::CPU);
      slot.set_model("null");
      slot.set_memory_bytes(int64_t{64} << 30);
      slot.set_cpu_threads(1);
    }
    stub_->async()->Connect(&context_, this);
    AddHold();  // Beat writes from another thread than the reactions
    StartCall();
    StartRead(&incoming_);
    Send(std::move(hello));
  }

  // Called every 10 ms: sends a heartbeat when one is due.
  void Beat(absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (ended_ || heartbeat_ == absl::ZeroDuration() || now < next_beat_) return;
    next_beat_ = std::max(next_beat_ + heartbeat_, now);
    v1::AgentMessage message;
    v1::Heartbeat& beat = *message.mutable_heartbeat();
    beat.set_id(++beat_id_);
    beat.set_desired_version(desired_version_);
    for (const auto& [key, rank] : present_) *beat.add_present() = rank;
    sent_[beat_id_] = now;
    SendLocked(std::move(message));
  }

  // One point of the next of its running ranks; false when none runs.
  bool Emit(absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (ended_ || running_.empty()) return false;
    Running& rank = running_[next_running_++ % running_.size()];
    v1::AgentMessage message;
    *message.mutable_events()->mutable_key() = rank.key;
    v1::RankEvent& event = *message.mutable_events()->add_events();
    event.set_sequence(++rank.sequence);
    event.set_time_us(absl::ToUnixMicros(now));
    v1::MetricPoint& metrics = *event.mutable_metrics();
    metrics.set_split(v1::MetricPoint::TRAIN);
    metrics.set_step(++rank.step);
    (*metrics.mutable_values())["loss"] = 1.0 / static_cast<double>(rank.step);
    (*metrics.mutable_values())["learning_rate"] = 0.1;
    SendLocked(std::move(message));
    return true;
  }

  // Of the oldest heartbeat that is not acknowledged, when it is late already.
  double OverdueMs(absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (sent_.empty()) return 0;
    const double late = absl::ToDoubleMilliseconds(now - sent_.begin()->second);
    return late > 1000 ? late : 0;
  }

  void End() {
    context_.TryCancel();
    {
      absl::MutexLock lock(&mu_);
      if (!released_) RemoveHold();
      released_ = true;
    }
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      if (!released_) RemoveHold();
      released_ = true;
      return;
    }
    Take(incoming_);
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    outgoing_.pop_front();
    if (!ok) {
      ended_ = true;
      outgoing_.clear();
    } else if (!outgoing_.empty() && !ended_) {
      StartWrite(&outgoing_.front());
    }
  }
  void OnDone(const grpc::Status& status) override {
    if (status.error_code() != grpc::StatusCode::CANCELLED) {
      std::cerr << "agent: session ended: " << status.error_message() << "\n";
    }
    tally_.SessionEnded();
    absl::MutexLock lock(&mu_);
    ended_ = true;
    done_ = true;
  }

 private:
  void Send(v1::AgentMessage message) {
    absl::MutexLock lock(&mu_);
    SendLocked(std::move(message));
  }
  void SendLocked(v1::AgentMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ended_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Take(const v1::ServerMessage& message) {
    absl::MutexLock lock(&mu_);
    if (message.has_welcome()) {
      tally_.Registered();
      heartbeat_ = absl::Milliseconds(message.welcome().heartbeat_ms());
      // Spread, as the agents of a yard are.
      next_beat_ = absl::Now() + heartbeat_ * (std::hash<const void*>()(this) / 64 % 100 / 100.0);
    } else if (message.has_lease()) {
      const auto sent = sent_.find(message.lease().heartbeat_id());
      if (sent == sent_.end()) return;
      tally_.Acknowledged(absl::Now() - sent->second);
      sent_.erase(sent);
    } else if (message.has_desired()) {
      Reconcile(message.desired());
    } else if (message.has_ack()) {
      const auto acked = acked_.find(KeyOf(message.ack().key()));
      if (options_.hold && acked != acked_.end()) {
        tally_.Stored(message.ack().sequence() - acked->second);
        acked->second = message.ack().sequence();
      }
      if (options_.hold) return;
      const Key key = KeyOf(message.ack().key());
      if (present_.erase(key) > 0 && !message.ack().fenced()) tally_.Finished();
    }
  }

  void Reconcile(const v1::DesiredSet& set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    desired_version_ = set.version();
    std::set<Key> wanted;
    for (const v1::Assignment& assignment : set.assignments()) {
      const Key key = KeyOf(assignment.key());
      wanted.insert(key);
      if (!started_.insert(key).second) continue;
      present_[key] = assignment.key();
      v1::AgentMessage events = Events(assignment);
      if (options_.hold) {
        running_.push_back({assignment.key(), events.events().events_size(), 0});
        acked_[key] = 0;
      }
      SendLocked(std::move(events));
    }
    // What is over for the server needs not be remembered.
    for (auto key = started_.begin(); key != started_.end();) {
      key =
          wanted.count(*key) > 0 || present_.count(*key) > 0 ? std::next(key) : started_.erase(key);
    }
  }

  // Started, restored, finished, exited, in one batch: an agent that reads a spool finds them
  // together.
  v1::AgentMessage Events(const v1::Assignment& assignment) const {
    v1::AgentMessage message;
    v1::EventBatch& batch = *message.mutable_events();
    *batch.mutable_key() = assignment.key();
    const auto add = [&batch]() -> v1::RankEvent& {
      v1::RankEvent& event = *batch.add_events();
      event.set_sequence(batch.events_size());
      event.set_time_us(absl::ToUnixMicros(absl::Now()));
      return event;
    };
    v1::RankEvent::Started& started = *add().mutable_started();
    started.set_pid(1);
    started.set_device("null");
    started.set_total_steps(assignment.spec().training().steps());
    add().mutable_restored()->set_step(0);
    if (options_.hold) return message;
    v1::RankEvent::Finished& finished = *add().mutable_finished();
    finished.set_outcome(v1::RankEvent::Finished::SUCCEEDED);
    finished.set_step(assignment.spec().training().steps());
    add().mutable_exited()->set_exit_code(0);
    return message;
  }

  // A rank that is held, and what it last said.
  struct Running {
    v1::RankKey key;
    int64_t sequence = 0;
    int64_t step = 0;
  };

  const AgentOptions& options_;
  Tally& tally_;
  std::unique_ptr<v1::ExecutorService::Stub> stub_;
  grpc::ClientContext context_;
  v1::ServerMessage incoming_;

  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<v1::AgentMessage> outgoing_ ABSL_GUARDED_BY(mu_);  // the first is being written
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mu_);
  absl::Time next_beat_ ABSL_GUARDED_BY(mu_);
  int64_t beat_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, absl::Time> sent_ ABSL_GUARDED_BY(mu_);
  int64_t desired_version_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<Key> started_ ABSL_GUARDED_BY(mu_);
  std::vector<Running> running_ ABSL_GUARDED_BY(mu_);
  size_t next_running_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Key, int64_t> acked_ ABSL_GUARDED_BY(mu_);        // of those that are held
  std::map<Key, v1::RankKey> present_ ABSL_GUARDED_BY(mu_);  // until their end is acknowledged
};

// Points of running ranks, `rate` per second for `limit`, spread over agents and time; answers once
// all are acknowledged.
nlohmann::json Emit(const std::vector<std::unique_ptr<NullAgent>>& agents, Tally& tally,
                    double rate, absl::Duration limit) {
  const int64_t before = tally.stored();
  const absl::Time begin = absl::Now();
  int64_t sent = 0;
  size_t next = 0;
  for (absl::Time now = begin; now - begin < limit; now = absl::Now()) {
    const auto due = static_cast<int64_t>(rate * absl::ToDoubleSeconds(now - begin));
    for (size_t idle = 0; sent < due && idle < agents.size();) {
      const bool emitted = agents[next++ % agents.size()]->Emit(absl::Now());
      idle = emitted ? 0 : idle + 1;
      if (emitted) ++sent;
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  const absl::Time end = tally.AwaitStored(before + sent, absl::Seconds(60));
  return {{"sent", sent},
          {"stored", tally.stored() - before},
          {"seconds", absl::ToDoubleSeconds(std::max(end, begin + limit) - begin)}};
}

}  // namespace

int RunAgents(const Target& target, const AgentOptions& options) {
  Tally tally;
  std::vector<std::unique_ptr<NullAgent>> agents;
  for (int i = 0; i < options.nodes; ++i) {
    agents.push_back(std::make_unique<NullAgent>(target, options, i, tally));
  }
  std::atomic<bool> stopping = false;
  std::thread beats([&] {
    while (!stopping) {
      const absl::Time now = absl::Now();
      for (const auto& agent : agents) agent->Beat(now);
      absl::SleepFor(absl::Milliseconds(10));
    }
  });
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    int64_t count = 0;
    double seconds = 0;
    words >> verb >> count >> seconds;
    double overdue = 0;
    for (const auto& agent : agents) overdue = std::max(overdue, agent->OverdueMs(absl::Now()));
    const nlohmann::json answer =
        verb == "reach"  ? tally.Reach(count, absl::Seconds(seconds))
        : verb == "emit" ? Emit(agents, tally, static_cast<double>(count), absl::Seconds(seconds))
                         : tally.Stats(overdue);
    std::cout << answer.dump() << std::endl;
  }
  stopping = true;
  beats.join();
  for (const auto& agent : agents) agent->End();
  return 0;
}

}  // namespace trainyard::bench
