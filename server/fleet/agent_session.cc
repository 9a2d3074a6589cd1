#include "server/fleet/agent_session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/fleet/assignment.h"
#include "server/fleet/decode.h"
#include "server/fleet/early_end.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr size_t kMostSent = 64;  // batches of events of one agent that are being stored

// What only the session knows of an event.
void Complete(const RankId& id, const std::string& node, RankEventRecord& event) {
  if (auto* notice = std::get_if<NoticeRecord>(&event.what)) notice->rank = id.rank;
  if (auto* failure = std::get_if<FailureRecord>(&event.what)) {
    failure->rank = id.rank;
    failure->node = node;
  }
  if (auto* written = std::get_if<CheckpointWritten>(&event.what)) {
    written->checkpoint.job_uid = id.job_uid;
    written->checkpoint.attempt = id.attempt;
    written->checkpoint.create_time = event.time;
  }
}

bool EndsRank(const RankEventRecord& event) {
  return std::holds_alternative<FailureRecord>(event.what) ||
         std::holds_alternative<RankFinished>(event.what) ||
         std::holds_alternative<RankExited>(event.what);
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

// What Register wrote is seen under the lock: the link reads on only after it.
bool AgentSession::MayRenew() const {
  absl::MutexLock lock(&mu_);
  return registered() && link_ != nullptr;
}

void AgentSession::Leave() { EndWith(absl::CancelledError("the agent left")); }

void AgentSession::LookAgain() {
  {
    absl::MutexLock lock(&mu_);
    look_again_ = true;
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
  bool look_again = false;
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    end = end_;
    if (!end.has_value() && waiting_) return;
    message = message_;
    look_again = look_again_;
    look_again_ = false;
  }
  if (end.has_value()) return Finish(*end);
  if (!admitted_) {
    const absl::Status admitted = admit_().status();
    if (!admitted.ok()) return Finish(admitted);
    admitted_ = true;
    ReadNext();
  }
  absl::Status status;
  if (message.has_value() && message->has_heartbeat() && registered()) {
    status = KeepLease(message->heartbeat());
  }
  if (status.ok()) status = TakeAnswers();
  // The set first: a heartbeat in the message is then held against the newest one.
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
    default:
      return true;  // of a newer agent: it must do without
  }
}

absl::Status AgentSession::Register(const v1::Register& message) {
  if (registered()) return absl::InvalidArgumentError("register: sent twice in one stream");
  TY_ASSIGN_OR_RETURN(NodeRecord node, DecodeRegister(message));
  TY_ASSIGN_OR_RETURN(const std::vector<RunningRank> running, DecodeRunning(message));
  // An older session of the same process must not renew the lease of this one either.
  node.incarnation = absl::StrCat(node.incarnation, "/", RandomHex(8));
  TY_RETURN_IF_ERROR(fleet_.store_.RegisterNode(node, fleet_.options_.lease).status());
  const AgentIdentity agent(node.name, node.uid, node.instance, node.incarnation);
  TY_RETURN_IF_ERROR(Rejoin(agent, running));
  {
    // The agent was told meanwhile that this session is over, and may have begun another one here.
    absl::MutexLock lock(&mu_);
    if (end_.has_value()) return absl::OkStatus();
  }
  node_ = node.name;
  agent_ = agent;
  incarnation_ = node.incarnation;
  fleet_.TakeOver(node_, std::static_pointer_cast<AgentSession>(shared_from_this()));
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
  welcome.mutable_welcome()->set_protocol_version(AgreeOnProtocol(message).value_or(0));
  Send(welcome);
  fleet_.wakeups_.Wake("queue");
  LookAgain();  // sends the first set, and goes on trying should the store be away by now
  return absl::OkStatus();
}

// Before the first set: what that does not name is killed.
absl::Status AgentSession::Rejoin(const AgentIdentity& agent,
                                  const std::vector<RunningRank>& running) {
  if (running.empty()) return absl::OkStatus();
  const absl::StatusOr<bool> rejoined = fleet_.store_.Rejoin(agent, running);
  if (absl::IsUnavailable(rejoined.status())) return rejoined.status();
  if (!rejoined.ok()) {  // they begin anew; the node must not be kept out for that
    spdlog::error("nodes/{}: lost ranks cannot rejoin: {}", agent.node,
                  rejoined.status().ToString());
  } else if (*rejoined) {
    spdlog::info("nodes/{}: is heard of again; what it runs goes on", agent.node);
    for (const RunningRank& rank : running) fleet_.wakeups_.Wake("job:" + rank.id.job_uid);
  }
  return absl::OkStatus();
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
    absl::StatusOr<v1::Assignment> assignment =
        MakeAssignment(rank, fleet_.options_.checkpoint_root, fleet_.clock_.Now());
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
    // Once more, now that the set was read: until here no other session began that may have started
    // one of them, and one that begins later never has them in its set, for they are over.
    TY_ASSIGN_OR_RETURN(const bool renewed, Renew(heartbeat));
    if (!renewed) return false;
    TY_RETURN_IF_ERROR(ReportAbsent());
  }
  kept_ = false;
  return true;
}

absl::Status AgentSession::FindAbsent(const v1::Heartbeat& heartbeat) {
  std::map<RankId, std::string> present;  // with the claims under which they were started
  for (const v1::RankKey& key : heartbeat.present()) {
    TY_ASSIGN_OR_RETURN(RankId id, DecodeRankKey(key));
    present.emplace(std::move(id), key.claim());
  }
  // What is placed or ended comes by a wake-up, and the agent tells what it has then. A set without
  // wishes that can be compared changes with time.
  const auto told = std::make_pair(heartbeat.desired_version(), present);
  if (told == compared_ && !desired_wishes_.empty() &&
      ++quiet_heartbeats_ < fleet_.options_.heartbeats_per_look) {
    return absl::OkStatus();
  }
  compared_.reset();
  // The list before the set: a rank that is placed in between is in the set only.
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
  // Slots are free, if no job changed. Whether the ranks had peers elsewhere is not known here.
  WakeAfterChange(jobs, {});
  return absl::OkStatus();
}

absl::Status AgentSession::Append(const v1::EventBatch& batch) {
  TY_ASSIGN_OR_RETURN(const RankId id, DecodeRankKey(batch.key()));
  std::vector<RankEventRecord> events = DecodeEvents(batch, fleet_.options_.checkpoint_root);
  if (ClaimsEarlyEnd(events)) {
    TY_ASSIGN_OR_RETURN(const std::vector<DesiredRank> desired, fleet_.store_.ReadDesired(agent_));
    CheckEarlyEnd(id, desired, events);
  }
  for (RankEventRecord& event : events) Complete(id, node_, event);
  const auto sent = std::make_shared<Sent>(Sent{
      .key = batch.key(),
      .report = {
          .agent = agent_, .rank = id, .events = std::move(events), .claim = batch.key().claim()}});
  sent_.push_back(sent);
  Commit(sent);
  return absl::OkStatus();
}

void AgentSession::Commit(const std::shared_ptr<Sent>& sent) {
  absl::MutexLock lock(&mu_);  // no answer comes between the look at the others and the sending
  for (const auto& other : sent_) {
    if (!other->answer.has_value() || !absl::IsUnavailable(other->answer->status())) continue;
    sent->answer = other->answer;  // it must not overtake
    return;
  }
  fleet_.CommitterOf(sent->report.rank.job_uid)
      .Append(sent->report, [weak = weak_from_this(), sent](absl::StatusOr<AppendResult> answer) {
        const auto self = std::static_pointer_cast<AgentSession>(weak.lock());
        if (self == nullptr) return;
        {
          absl::MutexLock lock(&self->mu_);
          sent->answer = std::move(answer);
        }
        self->Poke();
      });
}

// Batches of events may follow one another to the store; all else waits until they are there: what
// a heartbeat says is true after them.
bool AgentSession::MayHandle(const v1::AgentMessage& message) const {
  if (sent_.empty()) return true;
  return message.what_case() == v1::AgentMessage::kEvents && sent_.size() < kMostSent &&
         !commit_again_;
}

// Tells the agent what was stored, in order.
absl::Status AgentSession::TakeAnswers() {
  while (!sent_.empty()) {
    bool all_answered = false;
    std::optional<absl::StatusOr<AppendResult>> answer;
    {
      absl::MutexLock lock(&mu_);
      answer = sent_.front()->answer;
      all_answered = std::all_of(sent_.begin(), sent_.end(),
                                 [](const auto& sent) { return sent->answer.has_value(); });
    }
    if (!answer.has_value()) return absl::OkStatus();
    if (absl::IsUnavailable(answer->status())) {
      if (!all_answered) return absl::OkStatus();
      if (!std::exchange(commit_again_, true)) return answer->status();  // after a pause
      commit_again_ = false;
      {
        absl::MutexLock lock(&mu_);
        for (const auto& sent : sent_) sent->answer.reset();
      }
      for (const auto& sent : sent_) Commit(sent);
      return absl::OkStatus();
    }
    TY_RETURN_IF_ERROR(TakeAnswer(*sent_.front(), *std::move(answer)));
    sent_.pop_front();
    retry_after_ = kFirstRetry;
  }
  return absl::OkStatus();
}

absl::Status AgentSession::TakeAnswer(const Sent& sent, absl::StatusOr<AppendResult> result) {
  const RankId& id = sent.report.rank;
  const std::vector<RankEventRecord>& events = sent.report.events;
  const bool refused = !result.ok() && !absl::IsUnavailable(result.status());
  if (refused) result = EndRank(sent.report, result.status());
  if (!result.ok()) return result.status();
  // "Fenced" would kill a rank that the next session may name.
  if (result->session_over) return LeaseIsOver(node_, incarnation_);
  v1::ServerMessage message;
  v1::EventAck* ack = message.mutable_ack();
  *ack->mutable_key() = sent.key;
  ack->set_sequence(result->acked_sequence);
  ack->set_fenced(result->fenced);
  Send(message);
  if (result->fenced && !refused) return absl::OkStatus();
  // A rank that left frees its slot and may end its gang before the job's own state changes.
  const bool left = std::any_of(events.begin(), events.end(), EndsRank);
  if (fleet_.tells_feeds_ && result->items_known) {
    fleet_.wakeups_.WakeOthers("job:" + id.job_uid);  // the committer told ours
  } else {
    fleet_.wakeups_.Wake("job:" + id.job_uid);
  }
  if (result->job_changed || left) WakeAfterChange({}, result->nodes);
  return absl::OkStatus();
}

absl::StatusOr<AppendResult> AgentSession::EndRank(const RankEvents& report,
                                                   const absl::Status& why) {
  const RankId& id = report.rank;
  const std::vector<RankEventRecord>& events = report.events;
  spdlog::error("nodes/{}: rank {} of attempt {} of job {} is ended: {}", node_, id.rank,
                id.attempt, id.job_uid, why.ToString());
  TY_ASSIGN_OR_RETURN(const RankRecord rank,
                      fleet_.store_.FindRank(id.job_uid, id.attempt, id.rank));
  RankEventRecord last{.sequence = rank.acked_sequence + 1, .time = fleet_.clock_.Now()};
  AppendResult result{.acked_sequence = rank.acked_sequence, .fenced = true, .job_changed = true};
  if (rank.outcome == RankOutcome::kSucceeded || rank.outcome == RankOutcome::kSuspended) {
    // It stays wanted until its end is stored, so the agent must go on to that: the rest goes by.
    const auto exited = std::find_if(events.begin(), events.end(), [](const auto& event) {
      return std::holds_alternative<RankExited>(event.what);
    });
    result.fenced = false;
    if (!events.empty()) result.acked_sequence = LastSequenceOf(events.back());
    if (exited == events.end()) return result;
    last.what = exited->what;
  } else if (rank.outcome == RankOutcome::kNone) {
    last.what = FailureRecord{
        .category = "INTERNAL",
        .message = absl::StrCat("the server cannot go on with this rank: ", why.message()),
        .retryable = true,
        .rank = id.rank,
        .node = node_};
  } else {
    return result;
  }
  TY_ASSIGN_OR_RETURN(const AppendResult stored,
                      fleet_.store_.AppendEvents(
                          {.agent = agent_, .rank = id, .events = {last}, .claim = report.claim}));
  if (stored.fenced || stored.acked_sequence == last.sequence) return result;
  return absl::UnavailableError("another session stored events of the rank meanwhile");
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
    self->logs_.Answer(id, absl::UnavailableError("the node did not answer in time; try again"));
  });
}

void AgentSession::DeliverLog(const v1::LogChunk& chunk) {
  if (!chunk.error().empty()) {
    return logs_.Answer(chunk.request_id(),
                        absl::NotFoundError(absl::StrCat("nodes/", node_, ": ", chunk.error())));
  }
  logs_.Answer(chunk.request_id(), LogPiece{.data = chunk.data(),
                                            .offset = std::max<int64_t>(chunk.offset(), 0),
                                            .end = chunk.end()});
}

void AgentSession::Finish(const absl::Status& status) {
  finished_ = true;
  if (registered()) spdlog::info("nodes/{}: session ends: {}", node_, status.ToString());
  fleet_.Forget(*this, node_);
  EndLink(status);
}

}  // namespace trainyard
