// What the ranks of an agent report: on its way to the store, and the answers on their way back.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/fleet/agent_session.h"
#include "server/fleet/decode.h"
#include "server/fleet/early_end.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kMostSent = 64;  // batches of events of one agent that are being stored

// Fills in what only the session knows of an event.
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
  absl::MutexLock lock(&mu_);  // so that no answer comes between the check of the others and Append
  for (const auto& other : sent_) {
    if (!other->answer.has_value() || !absl::IsUnavailable(other->answer->status())) continue;
    sent->answer = other->answer;  // this batch must not overtake those that are sent again
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

// Several batches of events may be on their way to the store at once. All other messages wait until
// these are stored, because what a heartbeat says holds only after the events before it.
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
      // Tried again after a pause.
      if (!std::exchange(commit_again_, true)) return answer->status();
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
  // Told "fenced", the agent would kill a rank that its next session may have to keep.
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
    // The committer has told the watchers of this server.
    fleet_.wakeups_.WakeOthers("job:" + id.job_uid);
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
  // No rank is ended for a session whose lease is over (ReadDesired then fails with kAborted): the
  // next session may find that it should run.
  TY_RETURN_IF_ERROR(fleet_.store_.ReadDesired(agent_).status());
  TY_ASSIGN_OR_RETURN(const RankRecord rank,
                      fleet_.store_.FindRank(id.job_uid, id.attempt, id.rank));
  RankEventRecord last{.sequence = rank.acked_sequence + 1, .time = fleet_.clock_.Now()};
  AppendResult result{.acked_sequence = rank.acked_sequence, .fenced = true, .job_changed = true};
  const bool leaves = rank.failure.has_value() && rank.failure->has_state;
  if (rank.outcome == RankOutcome::kSucceeded || rank.outcome == RankOutcome::kSuspended ||
      leaves) {
    // The rank stays in the desired set until its exit is stored, so the agent must get as far as
    // that: all other events are acknowledged without being stored.
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

}  // namespace trainyard
