// What the heartbeats of an agent do: they renew its lease, and tell which ranks do not run.

#include <algorithm>
#include <utility>

#include "server/fleet/agent_session.h"
#include "server/fleet/decode.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kMostLeftStates = 1000;  // of a node, asked about at once

}  // namespace

// The lock makes what Register wrote visible here: ReadNext, which asked for this message, held it
// after Register.
bool AgentSession::MayRenew() const {
  absl::MutexLock lock(&mu_);
  return registered() && link_ != nullptr;
}

// Asks for the renewal, or takes its answer: true once the lease is renewed.
absl::StatusOr<bool> AgentSession::Renew(const v1::Heartbeat& heartbeat) {
  std::shared_ptr<Renewal> renewal;
  {
    absl::MutexLock lock(&mu_);
    if (renewal_ != nullptr && !renewal_->answer.has_value()) return false;
    renewal = std::exchange(renewal_, nullptr);
  }
  if (renewal != nullptr) {
    TY_RETURN_IF_ERROR(*renewal->answer);
    return true;
  }
  renewal = AskToRenew(heartbeat);
  absl::MutexLock lock(&mu_);
  renewal_ = std::move(renewal);
  return false;
}

std::shared_ptr<AgentSession::Renewal> AgentSession::AskToRenew(const v1::Heartbeat& heartbeat) {
  auto renewal = std::make_shared<Renewal>();
  fleet_.renewer_->Renew({node_, incarnation_, fleet_.options_.lease, DecodeReport(heartbeat)},
                         [weak = weak_from_this(), renewal](const absl::Status& answer) {
                           const auto self = std::static_pointer_cast<AgentSession>(weak.lock());
                           if (self == nullptr) return;
                           {
                             absl::MutexLock lock(&self->mu_);
                             renewal->answer = answer;
                           }
                           self->Poke();
                         });
  return renewal;
}

absl::Status AgentSession::KeepLease(const v1::Heartbeat& heartbeat) {
  if (kept_) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(kept_, Renew(heartbeat));
  if (!kept_) return absl::OkStatus();
  v1::ServerMessage ack;
  ack.mutable_lease()->set_heartbeat_id(heartbeat.id());
  Send(ack);
  return absl::OkStatus();
}

absl::StatusOr<bool> AgentSession::TakeHeartbeat(const v1::Heartbeat& heartbeat) {
  if (!kept_) return false;
  if (absent_.empty()) TY_RETURN_IF_ERROR(FindAbsent(heartbeat));
  if (!absent_.empty()) {
    // Renew once more, now that the desired set was read. If this succeeds, no other session began
    // until now that may have started one of these ranks. One that begins later has them in its set
    // only if its agent runs them, and this agent just said that it does not.
    TY_ASSIGN_OR_RETURN(const bool renewed, Renew(heartbeat));
    if (!renewed) return false;
    TY_RETURN_IF_ERROR(ReportAbsent());
  }
  FreeUnneeded(heartbeat);
  kept_ = false;
  return true;
}

void AgentSession::FreeUnneeded(const v1::Heartbeat& heartbeat) {
  std::vector<LeftState> states;
  for (const v1::LeftState& state : heartbeat.left_states()) {
    if (states.size() == kMostLeftStates) break;
    states.push_back({.job_uid = state.job_uid(), .attempt = state.attempt()});
  }
  if (states.empty()) return;
  // If the store cannot say, the agent asks again.
  const absl::StatusOr<std::vector<LeftState>> unneeded = fleet_.store_.FindUnneeded(states);
  if (!unneeded.ok() || unneeded->empty()) return;
  v1::ServerMessage message;
  for (const LeftState& state : *unneeded) {
    v1::LeftState& freed = *message.mutable_free()->add_states();
    freed.set_job_uid(state.job_uid);
    freed.set_attempt(state.attempt);
  }
  Send(message);
}

absl::Status AgentSession::FindAbsent(const v1::Heartbeat& heartbeat) {
  std::map<RankId, std::string> present;  // with the claims under which they were started
  for (const v1::RankKey& key : heartbeat.present()) {
    TY_ASSIGN_OR_RETURN(RankId id, DecodeRankKey(key));
    present.emplace(std::move(id), key.claim());
  }
  // Placements and ends of ranks come by a wake-up, so a heartbeat that says the same as the last
  // one that was compared is mostly not compared again. A set whose desired_wishes_ are empty
  // changes with time and is always compared.
  const auto told = std::make_pair(heartbeat.desired_version(), present);
  if (told == compared_ && !desired_wishes_.empty() &&
      ++quiet_heartbeats_ < fleet_.options_.heartbeats_per_look) {
    return absl::OkStatus();
  }
  compared_.reset();
  // The list is read before the set: a rank that is placed in between is only in the set, and so
  // not absent.
  TY_ASSIGN_OR_RETURN(const NodeRanks of_node, fleet_.store_.ReadRanks(node_));
  TY_RETURN_IF_ERROR(SendDesired(of_node));
  // Only what the agent says about the newest set counts: under an older one it may yet start what
  // the newest one names. SendDesired may just have sent a newer one; then the next heartbeat
  // tells.
  if (heartbeat.desired_version() != desired_version_) return absl::OkStatus();
  for (const HeldRank& rank : of_node.ranks) {
    if (!CanProveGone(agent_, rank.claim))
      continue;  // another agent's, or of another state directory
    // A rank in the set is the agent's to start, or to report as exited: never absent.
    if (desired_ranks_.count(rank.id) > 0) continue;
    const auto found = present.find(rank.id);
    const bool runs =
        found != present.end() && (found->second.empty() || found->second == rank.claim.token);
    if (!runs) absent_.push_back(rank.id);
  }
  quiet_heartbeats_ = 0;
  if (absent_.empty()) compared_ = told;
  return absl::OkStatus();
}

absl::Status AgentSession::ReportAbsent() {
  TY_RETURN_IF_ERROR(fleet_.store_.ReportAbsent(agent_, absent_).status());
  std::set<std::string> jobs;
  for (const RankId& id : absent_) jobs.insert(id.job_uid);
  absent_.clear();
  // Slots are free even if no job changed. Which nodes run peers of these ranks is not known here,
  // so all are woken.
  WakeAfterChange(jobs, {});
  return absl::OkStatus();
}

}  // namespace trainyard
