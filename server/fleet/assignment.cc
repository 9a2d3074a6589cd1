#include "server/fleet/assignment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "executor/plan/spec/layout_change.h"
#include "executor/plan/spec/mesh.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"
#include "storage/job_store.h"

namespace trainyard {
namespace {

constexpr int kFirstPort = 29400;  // of an agent that says none
constexpr int kLastPort = 65535;

// How long a rank whose gang broke may take to notice that, how long one with a share of the state
// then waits until it is known which others are left (the lease of a lost node has to end, and a
// rank that does nothing has its time to notice), and how long it may take to leave its state in
// memory. An agent begins anew to count when it is told another time.
constexpr absl::Duration kTimeToNotice = absl::Seconds(10);
constexpr absl::Duration kTimeToHearOfOthers = absl::Seconds(35);  // and a lease
constexpr absl::Duration kTimeToLeaveState = absl::Seconds(20);

// Whether ranks keep only a share of the state.
bool HasShares(const v1::JobSpec& spec) { return plan::StateSharedOut(spec) != v1::Parallel::NONE; }

// How long a rank may take to leave that is suspended.
absl::Duration GraceFor(const DesiredRank& desired, const v1::Assignment& assignment,
                        absl::Duration lease, absl::Time now) {
  const RankRecord& rank = desired.rank;
  absl::Duration most = absl::Hours(24);
  if (MayLeaveState(desired.job, desired.attempt, rank)) {
    const bool knows = rank.failure.has_value() && rank.failure->has_state;
    const bool waits = HasShares(assignment.spec()) && assignment.survivors().empty();
    most = !knows ? kTimeToNotice : waits ? lease + kTimeToHearOfOthers : kTimeToLeaveState;
  }
  return std::clamp(desired.suspend_deadline - now, absl::ZeroDuration(), most);
}

v1::Assignment::KeepState WishOf(StateStays stays) {
  switch (stays) {
    case StateStays::kHere:
      return v1::Assignment::HERE;
    case StateStays::kElsewhere:
      return v1::Assignment::ELSEWHERE;
    case StateStays::kHereAlone:
      return v1::Assignment::ALONE;
    case StateStays::kInCheckpoint:
      break;
  }
  return v1::Assignment::KEEP_STATE_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<std::string> RankAddress(absl::string_view address, int64_t slot) {
  const size_t colon = address.rfind(':');
  const bool bracketed = absl::StartsWith(address, "[");
  const bool has_port = colon != address.npos && (bracketed ? colon > 0 && address[colon - 1] == ']'
                                                            : address.find(':') == colon);
  const bool bare_ipv6 = colon != address.npos && !bracketed && !has_port;
  int first = kFirstPort;
  const bool parsed = !has_port || absl::SimpleAtoi(address.substr(colon + 1), &first);
  if (!parsed || first < 1 || slot < 0 || slot > kLastPort - first) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(address), "' has no port for slot ", slot));
  }
  const absl::string_view host = has_port ? address.substr(0, colon) : address;
  return absl::StrCat(bare_ipv6 ? "[" : "", host, bare_ipv6 ? "]" : "", ":", first + slot);
}

std::string RendezvousSecret(const AttemptRecord& attempt) {
  std::string claims = "rendezvous";
  for (const RankRecord& rank : attempt.ranks) absl::StrAppend(&claims, " ", rank.claim.token);
  return Sha256Hex(claims);
}

std::string CheckpointRootOf(const JobRecord& job, const std::string& root) {
  return absl::StrCat(absl::StripSuffix(root, "/"), "/", job.project, "/", job.job_id, "-",
                      job.uid.substr(0, 8));
}

v1::RankKey EncodeRankKey(const RankRecord& rank) {
  v1::RankKey key;
  key.set_job_uid(rank.id.job_uid);
  key.set_attempt(rank.id.attempt);
  key.set_rank(rank.id.rank);
  key.set_claim(rank.claim.token);
  return key;
}

absl::StatusOr<v1::Assignment> MakeAssignment(const DesiredRank& desired, const std::string& root,
                                              absl::Time now, absl::Duration lease) {
  v1::Assignment assignment;
  *assignment.mutable_key() = EncodeRankKey(desired.rank);
  assignment.set_job_name(FormatJobName({desired.job.project, desired.job.job_id}));
  assignment.set_world_size(desired.attempt.world_size);
  for (int slot : desired.rank.slots) assignment.add_slots(slot);
  absl::StatusOr<v1::JobSpec> spec = plan::SpecInLayout(desired.job.spec, desired.attempt.layout);
  if (!spec.ok()) return Annotate(spec.status(), assignment.job_name());
  *assignment.mutable_spec() = *std::move(spec);
  const v1::Parallel& parallel = assignment.spec().parallel();
  // Workers of before know no range of a gang whose ranks share. Besides, the range in the spec may
  // be one of another layout.
  if (plan::RanksInGroup(parallel) > 1 || !desired.attempt.layout.empty()) {
    const int ranks = desired.attempt.world_size;
    assignment.mutable_spec()->mutable_resources()->set_min_slots(ranks);
    // A job with a second owner may have two slots, or its spec is refused.
    const int most = parallel.second_owner() ? std::max(2, ranks) : ranks;
    assignment.mutable_spec()->mutable_resources()->set_max_slots(most);
  }
  if (!desired.attempt.restore_uri.empty()) {
    v1::RestorePoint* restore = assignment.mutable_restore();
    restore->set_step(desired.attempt.restore_step);
    restore->set_uri(desired.attempt.restore_uri);
    restore->set_manifest_sha256(desired.attempt.restore_manifest_sha256);
  }
  assignment.set_checkpoint_root(CheckpointRootOf(desired.job, root));
  assignment.set_unix_user(desired.unix_user);
  for (size_t rank = 0; rank < desired.addresses.size(); ++rank) {
    int slot = 0;
    if (rank < desired.attempt.ranks.size() && !desired.attempt.ranks[rank].slots.empty()) {
      slot = desired.attempt.ranks[rank].slots.front();
    }
    TY_ASSIGN_OR_RETURN(*assignment.add_rank_addresses(),
                        RankAddress(desired.addresses[rank], slot));
  }
  if (desired.attempt.world_size > 1) {
    assignment.set_rendezvous_secret(RendezvousSecret(desired.attempt));
  }
  if (const KeptState kept = KeptStateFor(desired.job, desired.attempt); kept.step > 0) {
    assignment.mutable_kept()->set_attempt(kept.attempt);
    assignment.mutable_kept()->set_step(kept.step);
  }
  assignment.set_wish(desired.suspend ? v1::Assignment::SUSPEND : v1::Assignment::RUN);
  if (desired.suspend) {
    assignment.set_keep_state(WishOf(StateStaysFor(desired.job, desired.attempt, desired.rank)));
    if (assignment.keep_state() == v1::Assignment::ALONE && HasShares(assignment.spec())) {
      for (const int rank : SurvivorsOf(desired.attempt)) assignment.add_survivors(rank);
    }
    assignment.set_grace_ms(absl::ToInt64Milliseconds(GraceFor(desired, assignment, lease, now)));
  }
  return assignment;
}

namespace {

// What a rank is to know of its gang, if that broke.
std::string OfBrokenGang(const DesiredRank& rank) {
  if (!MayLeaveState(rank.job, rank.attempt, rank.rank)) return "";
  const absl::StatusOr<v1::JobSpec> spec = plan::SpecInLayout(rank.job.spec, rank.attempt.layout);
  return spec.ok() && HasShares(*spec)
             ? absl::StrCat("broken ", absl::StrJoin(SurvivorsOf(rank.attempt), ","))
             : "broken";
}

}  // namespace

std::string DesiredFingerprint(const std::vector<DesiredRank>& desired) {
  std::vector<std::string> parts;
  for (const DesiredRank& rank : desired) {
    parts.push_back(absl::StrCat(
        rank.rank.id.job_uid, "/", rank.rank.id.attempt, "/", rank.rank.id.rank, "/",
        rank.rank.claim.token, "/", rank.suspend ? "suspend" : "run",
        rank.suspend ? WishOf(StateStaysFor(rank.job, rank.attempt, rank.rank))
                     : v1::Assignment::KEEP_STATE_UNSPECIFIED,
        "/", rank.suspend ? absl::ToUnixMillis(rank.suspend_deadline) : 0, "/", OfBrokenGang(rank),
        "/", rank.rank.failure.has_value() && rank.rank.failure->has_state));
  }
  std::sort(parts.begin(), parts.end());
  return absl::StrJoin(parts, "\n");
}

}  // namespace trainyard
