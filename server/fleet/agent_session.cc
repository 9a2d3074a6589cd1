#include "server/fleet/agent_session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/fleet/assignment.h"
#include "server/fleet/decode.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLongestGrace = absl::Hours(24);

// kPermissionDenied: the registration is of another node than the one that joined with `key`.
absl::Status BindToKey(const NodeKey& key, NodeRecord& node) {
  if (node.name != key.node || node.uid != key.node_uid) {
    return absl::PermissionDeniedError(absl::StrCat(
        "register: nodes/", node.name, node.name == key.node ? " of another state directory" : "",
        " with the certificate of nodes/", key.node, "; start it with that --node, or let it join ",
        "with a --state-dir of its own"));
  }
  node.key_fingerprint = key.fingerprint;
  node.labels.erase(kPoolLabel);
  if (!key.pool.empty()) node.labels[kPoolLabel] = key.pool;
  return absl::OkStatus();
}

}  // namespace

AgentSession::AgentSession(Fleet& fleet, Fleet::Admit admit, AgentLink& link)
    : Actor(fleet.pool_),
      fleet_(fleet),
      admit_(std::move(admit)),
      retry_after_(kFirstRetry),
      link_(&link) {}

void AgentSession::Receive(v1::AgentMessage message) {
  std::shared_ptr<Renewal> renewal;
  if (message.has_heartbeat() && MayRenew()) renewal = AskToRenew(message.heartbeat());
  {
    absl::MutexLock lock(&mu_);
    message_ = std::move(message);
    renewal_ = renewal;
    // Work goes on with a heartbeat once its lease is renewed.
    if (renewal != nullptr && !renewal->answer.has_value()) return;
  }
  Poke();
}

void AgentSession::Leave() { EndWith(absl::CancelledError("the agent left")); }

void AgentSession::NotifyChanged() {
  {
    absl::MutexLock lock(&mu_);
    look_again_ = true;
  }
  Poke();
}

void AgentSession::EndIfRevoked() {
  {
    absl::MutexLock lock(&mu_);
    admit_again_ = true;
  }
  Poke();
}

void AgentSession::EndWith(const absl::Status& status) {
  EndLink(status);
  Poke();
}

void AgentSession::EndLink(const absl::Status& status) {
  AgentLink* link = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = status;
    link = std::exchange(link_, nullptr);
  }
  logs_.Close(absl::UnavailableError("the node left; try again"));
  looks_.Close(absl::UnavailableError("the node left; try again"));
  if (link != nullptr) link->Finish(status);
}

void AgentSession::Send(const v1::ServerMessage& message) {
  absl::MutexLock lock(&mu_);
  if (link_ != nullptr) link_->Send(message);
}

void AgentSession::ReadNext() {
  absl::MutexLock lock(&mu_);
  if (link_ != nullptr) link_->ReadNext();
}

void AgentSession::Work() {
  if (finished_) return;
  std::optional<v1::AgentMessage> message;
  bool look_again = false, admit_again = false;
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    end = end_;
    if (!end.has_value() && waiting_) return;
    message = message_;
    look_again = std::exchange(look_again_, false);
    admit_again = std::exchange(admit_again_, false);
  }
  if (end.has_value()) return Finish(*end);
  if (!admitted_) {
    const absl::Status admitted = Admit();
    if (!admitted.ok()) return Finish(admitted);
    admitted_ = true;
    ReadNext();
  }
  absl::Status status;
  if (admit_again) {
    status = Admit();
    absl::MutexLock lock(&mu_);
    admit_again_ |= absl::IsUnavailable(status);
  }
  if (status.ok() && message.has_value() && message->has_heartbeat() && registered()) {
    status = KeepLease(message->heartbeat());
  }
  if (status.ok()) status = TakeAnswers();
  // The set is sent first, so that a heartbeat in the message is compared with the newest one.
  if (status.ok() && look_again && registered()) {
    compared_.reset();  // something is new here, whatever the next heartbeat tells
    const absl::StatusOr<NodeRanks> ranks = fleet_.store_.ReadRanks(node_);
    status = ranks.ok() ? SendDesired(*ranks) : ranks.status();
  }
  if (absl::IsUnavailable(status)) {
    absl::MutexLock lock(&mu_);
    look_again_ |= look_again;
  } else if (status.ok() && message.has_value() && MayHandle(*message)) {
    const absl::StatusOr<bool> handled = Handle(*message);
    status = handled.status();
    if (handled.ok() && *handled) {
      {
        absl::MutexLock lock(&mu_);
        message_.reset();
      }
      if (sent_.empty()) retry_after_ = kFirstRetry;
      ReadNext();
    }
  }
  if (absl::IsUnavailable(status)) return Retry(status);
  if (!status.ok()) Finish(status);
}

void AgentSession::Retry(const absl::Status& status) {
  spdlog::warn("nodes/{}: the store is away, tries again in {}: {}", node_,
               absl::FormatDuration(retry_after_), status.ToString());
  {
    absl::MutexLock lock(&mu_);
    waiting_ = true;
  }
  fleet_.pool_.PostAfter(retry_after_, [weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<AgentSession>(weak.lock());
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mu_);
      self->waiting_ = false;
    }
    self->Poke();
  });
  retry_after_ = std::min(retry_after_ * 2, fleet_.options_.longest_retry);
}

absl::StatusOr<bool> AgentSession::Handle(const v1::AgentMessage& message) {
  if (message.what_case() == v1::AgentMessage::kRegister) {
    TY_RETURN_IF_ERROR(Register(message.register_()));
    return true;
  }
  if (!registered()) return absl::InvalidArgumentError("the first message must be register");
  switch (message.what_case()) {
    case v1::AgentMessage::kHeartbeat:
      return TakeHeartbeat(message.heartbeat());
    case v1::AgentMessage::kEvents:
      TY_RETURN_IF_ERROR(Append(message.events()));
      return true;
    case v1::AgentMessage::kLog:
      DeliverLog(message.log());
      return true;
    case v1::AgentMessage::kLook:
      looks_.TakeAnswer(message.look().request_id(), message.look());
      return true;
    case v1::AgentMessage::kLeaving:
      TY_RETURN_IF_ERROR(TakeLeave(message.leaving()));
      return true;
    default:
      return true;  // of a newer agent: it must do without
  }
}

absl::Status AgentSession::Admit() {
  TY_ASSIGN_OR_RETURN(key_, admit_());
  return absl::OkStatus();
}

absl::Status AgentSession::Register(const v1::Register& message) {
  if (registered()) return absl::InvalidArgumentError("register: sent twice in one stream");
  TY_ASSIGN_OR_RETURN(NodeRecord node, DecodeRegister(message));
  if (key_.has_value()) TY_RETURN_IF_ERROR(BindToKey(*key_, node));
  // An older session of the same process must not renew the lease of this one either.
  node.incarnation = absl::StrCat(node.incarnation, "/", RandomHex(8));
  TY_ASSIGN_OR_RETURN(const NodeRecord registered,
                      fleet_.store_.RegisterNode(node, fleet_.options_.lease));
  for (const RunningRank& rank : registered.running) {
    spdlog::info("nodes/{}: is heard of again; rank {} of job {} goes on", node.name, rank.id.rank,
                 rank.id.job_uid);
    fleet_.wakeups_.Wake("job:" + rank.id.job_uid);
  }
  {
    // The agent was told meanwhile that this session is over, and may have begun another one here.
    absl::MutexLock lock(&mu_);
    if (end_.has_value()) return absl::OkStatus();
  }
  node_ = node.name;
  agent_ = {node.name, node.uid, node.instance, node.incarnation};
  incarnation_ = node.incarnation;
  fleet_.TakeOver(node_, std::static_pointer_cast<AgentSession>(shared_from_this()));
  if (key_.has_value()) EndIfRevoked();  // just now, when this session was not known here yet
  spdlog::info("nodes/{}: registered with {} slots from {}", node_, node.slots.size(),
               node.address);

  v1::ServerMessage welcome;
  welcome.mutable_welcome()->set_heartbeat_ms(absl::ToInt64Milliseconds(fleet_.options_.heartbeat));
  welcome.mutable_welcome()->set_lease_ms(absl::ToInt64Milliseconds(fleet_.options_.lease));
  welcome.mutable_welcome()->set_self_fence_ms(
      absl::ToInt64Milliseconds(fleet_.options_.self_fence));
  welcome.mutable_welcome()->set_orphan_limit_ms(
      absl::ToInt64Milliseconds(fleet_.options_.orphan_limit));
  welcome.mutable_welcome()->set_metric_columns(true);
  welcome.mutable_welcome()->set_unix_users(true);
  welcome.mutable_welcome()->set_protocol_version(AgreeOnProtocol(message).value_or(0));
  Send(welcome);
  knows_unix_users_ = message.knows_unix_users();
  looks_at_files_ = message.looks_at_files();  // what it is asked must come after the welcome
  fleet_.wakeups_.Wake("queue");
  NotifyChanged();  // sends the first set, and goes on trying should the store be away by now
  return absl::OkStatus();
}

absl::Status AgentSession::TakeLeave(const v1::Leaving& message) {
  const absl::Duration grace =
      std::clamp(absl::Milliseconds(message.grace_ms()), absl::ZeroDuration(), kLongestGrace);
  TY_RETURN_IF_ERROR(fleet_.store_.SetLeaving(agent_, grace));
  spdlog::info("nodes/{}: leaves within {}", node_, absl::FormatDuration(grace));
  fleet_.wakeups_.Wake("queue");
  // Before the next heartbeat is acknowledged: nothing is placed here after what this set has.
  compared_.reset();
  TY_ASSIGN_OR_RETURN(const NodeRanks ranks, fleet_.store_.ReadRanks(node_));
  return SendDesired(ranks);
}

absl::Status AgentSession::SendDesired(const NodeRanks& ranks_of_node) {
  const bool known = desired_version_ > 0 && !ranks_of_node.wishes.empty();
  if (known && ranks_of_node.wishes == desired_wishes_) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(const std::vector<DesiredRank> desired, fleet_.store_.ReadDesired(agent_));
  const std::string fingerprint = DesiredFingerprint(desired);
  if (desired_version_ > 0 && fingerprint == desired_fingerprint_) {
    desired_wishes_ = ranks_of_node.wishes;
    return absl::OkStatus();
  }
  v1::ServerMessage message;
  v1::DesiredSet* set = message.mutable_desired();
  std::set<RankId> ranks;
  for (const DesiredRank& rank : desired) {
    absl::StatusOr<v1::Assignment> assignment = MakeAssignment(
        rank, fleet_.options_.checkpoint_root, fleet_.clock_.Now(), fleet_.options_.lease);
    const bool to_start = rank.rank.state == RankState::kAssigned;
    if (to_start && !rank.unix_user.empty() && !knows_unix_users_) {
      assignment = absl::UnavailableError(
          absl::StrCat("nodes/", node_, " has an agent of before, which would not run it as '",
                       rank.unix_user, "', as the project says"));
    }
    if (!assignment.ok()) {
      TY_RETURN_IF_ERROR(
          EndRank({.agent = agent_, .rank = rank.rank.id}, assignment.status()).status());
      WakeAfterChange({rank.rank.id.job_uid}, NodesOf(rank.attempt));
      continue;
    }
    *set->add_assignments() = *std::move(assignment);
    ranks.insert(rank.rank.id);
  }
  set->set_version(++desired_version_);
  desired_fingerprint_ = fingerprint;
  desired_wishes_ = ranks_of_node.wishes;
  desired_ranks_ = std::move(ranks);
  Send(message);
  return absl::OkStatus();
}

void AgentSession::WakeAfterChange(const std::set<std::string>& jobs,
                                   const std::vector<std::string>& nodes) {
  for (const std::string& uid : jobs) fleet_.wakeups_.Wake("job:" + uid);
  fleet_.wakeups_.Wake("queue");
  for (const std::string& node : nodes) fleet_.wakeups_.Wake("node:" + node);
  if (nodes.empty()) fleet_.wakeups_.Wake("fleet");
}

void AgentSession::ReadLog(const v1::RankKey& rank, int64_t offset, int64_t max_bytes,
                           const LogRequests::Done& done) {
  const std::string id = RandomHex(8);
  v1::ServerMessage message;
  message.mutable_log()->set_request_id(id);
  *message.mutable_log()->mutable_key() = rank;
  message.mutable_log()->set_offset(offset);
  message.mutable_log()->set_max_bytes(max_bytes);
  if (!logs_.Ask(id, done, [&] { Send(message); })) {
    return done(absl::UnavailableError("the node has just left; try again"));
  }
  fleet_.pool_.PostAfter(fleet_.options_.log_timeout, [weak = weak_from_this(), id] {
    const auto self = std::static_pointer_cast<AgentSession>(weak.lock());
    if (self == nullptr) return;
    self->logs_.TakeAnswer(id,
                           absl::UnavailableError("the node did not answer in time; try again"));
  });
}

void AgentSession::DeliverLog(const v1::LogChunk& chunk) {
  if (!chunk.error().empty()) {
    return logs_.TakeAnswer(chunk.request_id(), absl::NotFoundError(absl::StrCat(
                                                    "nodes/", node_, ": ", chunk.error())));
  }
  logs_.TakeAnswer(chunk.request_id(), LogPiece{.data = chunk.data(),
                                                .offset = std::max<int64_t>(chunk.offset(), 0),
                                                .end = chunk.end()});
}

void AgentSession::Look(v1::LookRequest request, absl::Duration patience,
                        const LookRequests::Done& done) {
  const std::string id = RandomHex(8);
  v1::ServerMessage message;
  request.set_request_id(id);
  *message.mutable_look() = std::move(request);
  if (!looks_.Ask(id, done, [&] { Send(message); })) {
    return done(absl::UnavailableError("the node has just left; try again"));
  }
  fleet_.pool_.PostAfter(patience, [weak = weak_from_this(), id] {
    const auto self = std::static_pointer_cast<AgentSession>(weak.lock());
    if (self == nullptr) return;
    self->looks_.TakeAnswer(id,
                            absl::UnavailableError("the node did not answer in time; try again"));
  });
}

void AgentSession::Finish(const absl::Status& status) {
  finished_ = true;
  if (registered()) spdlog::info("nodes/{}: session ends: {}", node_, status.ToString());
  fleet_.Forget(*this, node_);
  EndLink(status);
}

}  // namespace trainyard
