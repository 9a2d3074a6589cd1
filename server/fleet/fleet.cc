#include "server/fleet/fleet.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/fleet/agent_session.h"
#include "server/fleet/assignment.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kCommitters = 2;
constexpr size_t kMostLookers = 3;
constexpr absl::Duration kLongestLook = absl::Seconds(18);  // an agent takes 15
constexpr size_t kMostOfError = 65536;
constexpr char kRevoked[] = "revoked:";

std::vector<std::shared_ptr<EventCommitter>> MakeCommitters(TaskPool& pool, FleetStore& store,
                                                            const FeedListener& listener) {
  std::vector<std::shared_ptr<EventCommitter>> committers;
  for (int i = 0; i < kCommitters; ++i) {
    committers.push_back(std::make_shared<EventCommitter>(pool, store, listener));
  }
  return committers;
}

}  // namespace

std::string RevokedTopic(const std::string& node) { return absl::StrCat(kRevoked, node); }

Fleet::Fleet(FleetStore& store, Wakeups& wakeups, TaskPool& pool, Clock& clock,
             FleetOptions options, FeedListener listener)
    : store_(store),
      wakeups_(wakeups),
      pool_(pool),
      clock_(clock),
      options_(std::move(options)),
      tells_feeds_(listener != nullptr),
      committers_(MakeCommitters(pool, store, listener)),
      renewer_(std::make_shared<LeaseRenewer>(pool, store, options_.renewals_rest_per_node)) {
  subscription_ = wakeups_.Subscribe([this](const std::string& topic) {
    absl::string_view node = topic;
    if (absl::ConsumePrefix(&node, "node:")) {
      const std::shared_ptr<AgentSession> session = SessionOf(std::string(node));
      if (session != nullptr) session->NotifyChanged();
    } else if (absl::ConsumePrefix(&node, kRevoked)) {
      const std::shared_ptr<AgentSession> session = SessionOf(std::string(node));
      if (session != nullptr) session->EndIfRevoked();
    } else if (topic == "fleet") {
      std::vector<std::shared_ptr<AgentSession>> sessions;
      {
        absl::MutexLock lock(&mu_);
        for (const auto& [name, session] : by_node_) sessions.push_back(session);
      }
      for (const auto& session : sessions) session->NotifyChanged();
    }
  });
}

Fleet::~Fleet() { wakeups_.Unsubscribe(subscription_); }

std::shared_ptr<AgentSession> Fleet::Make(Admit admit, AgentLink& link) {
  return std::make_shared<AgentSession>(*this, std::move(admit), link);
}

void Fleet::Begin(const std::shared_ptr<AgentSession>& session) {
  std::optional<absl::Status> refused;
  {
    absl::MutexLock lock(&mu_);
    sessions_.emplace(session.get(), session);
    refused = draining_;
    if (!refused.has_value() && !away_.ok()) refused = away_;
  }
  if (refused.has_value()) {
    session->EndWith(*refused);
  } else {
    session->Poke();
  }
}

EventCommitter& Fleet::CommitterOf(const std::string& job_uid) const {
  // Not absl's hash, which differs from process to process: a simulation must repeat exactly with
  // the same seed.
  return *committers_[std::hash<std::string>()(job_uid) % committers_.size()];
}

void Fleet::TakeOver(const std::string& node, const std::shared_ptr<AgentSession>& session) {
  std::shared_ptr<AgentSession> older;
  {
    absl::MutexLock lock(&mu_);
    std::shared_ptr<AgentSession>& current = by_node_[node];
    older = std::move(current);
    current = session;
    renewer_->SetNodes(by_node_.size());
  }
  if (older != nullptr && older != session) {
    older->EndWith(absl::AbortedError(
        absl::StrCat("a newer session of nodes/", node, " took over; register again")));
  }
}

void Fleet::Forget(const AgentSession& session, const std::string& node) {
  std::shared_ptr<AgentSession> dropped;  // destroyed outside the lock
  absl::MutexLock lock(&mu_);
  const auto mine = by_node_.find(node);
  if (mine != by_node_.end() && mine->second.get() == &session) by_node_.erase(mine);
  renewer_->SetNodes(by_node_.size());
  const auto found = sessions_.find(&session);
  if (found == sessions_.end()) return;
  dropped = std::move(found->second);
  sessions_.erase(found);
}

std::shared_ptr<AgentSession> Fleet::SessionOf(const std::string& node) const {
  absl::MutexLock lock(&mu_);
  const auto found = by_node_.find(node);
  return found == by_node_.end() ? nullptr : found->second;
}

namespace {

// What the agent says; of a liar's codes and bytes nothing else is believed.
absl::Status ErrorOf(const v1::LookAnswer& answer, const std::string& node) {
  const int code = answer.error().code();
  const bool known = code == static_cast<int>(absl::StatusCode::kUnimplemented) ||
                     code == static_cast<int>(absl::StatusCode::kUnavailable) ||
                     code == static_cast<int>(absl::StatusCode::kFailedPrecondition);
  return absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInvalidArgument,
      absl::StrCat(Printable(answer.error().message().substr(0, kMostOfError)),
                   " (seen from nodes/", node, ")"));
}

}  // namespace

void Fleet::ReadLog(const RankRecord& rank, int64_t offset, int64_t max_bytes,
                    const LogRequests::Done& done) {
  const std::shared_ptr<AgentSession> session = SessionOf(rank.node);
  if (session == nullptr) {
    return done(absl::UnavailableError(
        absl::StrCat("nodes/", rank.node,
                     ", which holds the log, is not connected to this server; it may be away, or ",
                     "connected to another replica")));
  }
  session->ReadLog(EncodeRankKey(rank), offset, max_bytes, done);
}

std::vector<std::pair<std::string, std::shared_ptr<AgentSession>>> Fleet::SomeThatLook() const {
  std::vector<std::pair<std::string, std::shared_ptr<AgentSession>>> some;
  static thread_local std::minstd_rand random(std::random_device{}());
  absl::MutexLock lock(&mu_);
  // A sample of them all: each of the first kMostLookers, or later one in their place.
  size_t seen = 0;
  for (const auto& [node, session] : by_node_) {
    if (!session->looks_at_files()) continue;
    ++seen;
    if (some.size() < kMostLookers) {
      some.emplace_back(node, session);
    } else if (const size_t at = random() % seen; at < kMostLookers) {
      some[at] = {node, session};
    }
  }
  return some;
}

absl::StatusOr<v1::DataFacts> Fleet::Look(const v1::LookRequest& request, absl::Time until,
                                          bool& unseen) {
  absl::Status why = absl::UnavailableError(
      "no node that looks at files as users of projects is connected to this server");
  for (const auto& [node, session] : SomeThatLook()) {
    const absl::Duration patience = std::min(kLongestLook, until - absl::Now());
    if (patience <= absl::ZeroDuration()) break;
    struct Answered {
      absl::Notification done;
      absl::StatusOr<v1::LookAnswer> answer = absl::UnknownError("not answered");
    };
    const auto answered = std::make_shared<Answered>();
    session->Look(request, patience, [answered](absl::StatusOr<v1::LookAnswer> answer) {
      answered->answer = std::move(answer);
      answered->done.Notify();
    });
    answered->done.WaitForNotification();
    const absl::StatusOr<v1::LookAnswer>& answer = answered->answer;
    if (answer.ok() && answer->has_facts()) return answer->facts();
    if (!answer.ok()) {
      why = Annotate(answer.status(), absl::StrCat("nodes/", node));
      continue;
    }
    unseen = answer->error().unseen();
    why = ErrorOf(*answer, node);
    const bool busy = absl::IsUnavailable(why);
    if (!unseen && !busy) return why;
  }
  return why;
}

void Fleet::EndAll(const absl::Status& status) {
  std::vector<std::shared_ptr<AgentSession>> sessions;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [pointer, session] : sessions_) sessions.push_back(session);
  }
  for (const auto& session : sessions) session->EndWith(status);
}

void Fleet::SetStoreAway(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    away_ = why;
  }
  if (!why.ok()) EndAll(why);
}

void Fleet::Drain(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    draining_ = status;
  }
  EndAll(status);
}

int Fleet::connected() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(by_node_.size());
}

}  // namespace trainyard
