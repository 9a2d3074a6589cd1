#pragma once

// One session step by step, over a store that says what the test wants.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/fleet/agent_session.h"
#include "storage/local_wakeups.h"

namespace trainyard {

// A node with sessions, ranks that are over (listed as not gone, in no desired set), and what is
// wanted there.
class NodeStore : public FleetStore {
 public:
  absl::StatusOr<NodeRecord> RegisterNode(const NodeRecord& node, absl::Duration) override {
    newest_[node.name] = node.incarnation;
    return node;
  }
  std::vector<absl::Status> RenewLeases(const std::vector<LeaseRenewal>& renewals) override {
    groups.push_back(renewals.size());
    if (away > 0) {
      --away;
      return std::vector<absl::Status>(renewals.size(), absl::UnavailableError("away"));
    }
    std::vector<absl::Status> answers;
    for (const LeaseRenewal& renewal : renewals) {
      usage = renewal.report.usage;
      answers.push_back(renewal.incarnation == newest_[renewal.node]
                            ? absl::OkStatus()
                            : absl::AbortedError("a newer session began"));
    }
    return answers;
  }
  absl::StatusOr<std::vector<DesiredRank>> ReadDesired(const AgentIdentity&) override {
    ++reads;
    return desired;
  }
  absl::StatusOr<NodeRanks> ReadRanks(const std::string&) override {
    if (on_list) on_list();
    NodeRanks read{.wishes = wishes};
    for (const RankId& id : over) read.ranks.push_back({id, claim});
    return read;
  }
  absl::StatusOr<std::vector<LeftState>> FindUnneeded(
      const std::vector<LeftState>& states) override {
    std::vector<LeftState> found;
    for (const LeftState& state : states) {
      if (state.attempt < 2) found.push_back(state);
    }
    return found;
  }
  absl::StatusOr<bool> ReportAbsent(const AgentIdentity&,
                                    const std::vector<RankId>& ranks) override {
    absent.insert(absent.end(), ranks.begin(), ranks.end());
    return true;
  }
  absl::StatusOr<AppendResult> AppendEvents(const RankEvents& report) override {
    const std::vector<RankEventRecord>& more = report.events;
    if (events_are_refused) return absl::UnavailableError("away");
    events.insert(events.end(), more.begin(), more.end());
    AppendResult result{.acked_sequence = more.back().sequence};
    result.items_known = items_known;
    result.job_changed = job_changed;
    return result;
  }
  absl::StatusOr<std::vector<NodeRecord>> ListNodes() override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<NodeRecord> SetDraining(const std::string&, bool) override {
    return absl::UnimplementedError("");
  }
  absl::Status SetLeaving(const AgentIdentity& agent, absl::Duration grace) override {
    EXPECT_EQ(agent.node, "n1");
    leaves_within = grace;
    return absl::OkStatus();
  }
  absl::StatusOr<int> ConfirmEmpty(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<RankRecord> FindRank(const std::string&, int64_t, int) override {
    return RankRecord();
  }
  absl::StatusOr<AttemptRecord> FindAttempt(const std::string&, int64_t) override {
    return AttemptRecord();
  }
  absl::StatusOr<std::vector<AttemptRecord>> ListAttempts(const std::string&) override {
    return absl::UnimplementedError("");
  }

  std::optional<absl::Duration> leaves_within;
  int reads = 0;               // of the desired set
  std::vector<size_t> groups;  // of renewals
  int away = 0;                // for so many of them
  std::vector<DesiredRank> desired;
  std::vector<SlotUsage> usage;
  std::vector<RankEventRecord> events;  // stored
  std::vector<RankId> over;
  Claim claim;         // to all of them
  std::string wishes;  // empty: to be read
  bool events_are_refused = false;
  bool items_known = false;  // of what is stored, and whether it changes the job
  bool job_changed = false;
  std::vector<RankId> absent;  // reported
  std::function<void()> on_list;

 private:
  std::map<std::string, std::string> newest_;  // incarnations by node
};

class Recorder : public AgentLink {
 public:
  void Send(const v1::ServerMessage& message) override {
    if (message.has_desired()) desired = message.desired();
    if (message.has_lease()) acknowledged = message.lease().heartbeat_id();
    if (message.has_free()) freed.push_back(message.free());
  }
  void ReadNext() override {}
  void Finish(const absl::Status& status) override { end = status; }

  std::optional<absl::Status> end;
  v1::DesiredSet desired;    // the newest
  int64_t acknowledged = 0;  // the newest heartbeat
  std::vector<v1::FreeStates> freed;
};

// Tells which feeds whom was woken for.
class FeedWakeups : public LocalWakeups {
 public:
  void Wake(const std::string& topic) override {
    if (topic.rfind("job:", 0) == 0) woken.push_back("all " + topic);
    LocalWakeups::Wake(topic);
  }
  void WakeOthers(const std::string& topic) override { woken.push_back("others " + topic); }

  std::vector<std::string> woken;
};

class AgentSessionTest : public ::testing::Test {
 protected:
  // `look_every`: so many heartbeats that tell nothing new.
  explicit AgentSessionTest(int look_every = 1, FeedListener listener = nullptr)
      : fleet_{store_,
               wakeups_,
               pool_,
               SystemClock(),
               {.heartbeats_per_look = look_every, .renewals_rest_per_node = absl::ZeroDuration()},
               std::move(listener)} {
    fleet_.Begin(session_);
    v1::AgentMessage hello;
    hello.mutable_register_()->set_node("n1");
    hello.mutable_register_()->set_incarnation("i1");
    hello.mutable_register_()->set_address("here");
    hello.mutable_register_()->set_protocol_version(1);
    Hear(hello);
    store_.over = {{"job", 1, 0}};
  }

  void Hear(const v1::AgentMessage& message) {
    while (pool_.RunOne()) {
    }
    session_->Receive(message);
    while (pool_.RunOne()) {
    }
  }

  // Under the first, empty set; nothing runs.
  void HearHeartbeat() {
    v1::AgentMessage message;
    message.mutable_heartbeat()->set_id(1);
    message.mutable_heartbeat()->set_desired_version(1);
    Hear(message);
  }

  // A notice of rank 0 of "job".
  void HearNotice(int64_t sequence) {
    v1::AgentMessage message;
    message.mutable_events()->mutable_key()->set_job_uid("job");
    message.mutable_events()->mutable_key()->set_attempt(1);
    v1::RankEvent& event = *message.mutable_events()->add_events();
    event.set_sequence(sequence);
    event.mutable_notice()->set_message("hello");
    Hear(message);
  }

  NodeStore store_;
  FeedWakeups wakeups_;
  TaskPool pool_{0};
  Fleet fleet_;
  Recorder link_;
  std::shared_ptr<AgentSession> session_ =
      fleet_.Make([] { return absl::StatusOr<std::optional<NodeKey>>(std::nullopt); }, link_);
};

}  // namespace trainyard
