#include "storage/postgres/submitter.h"

#include <algorithm>
#include <map>
#include <pqxx/pqxx>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/job_store.h"
#include "storage/postgres/queries.inc.h"
#include "storage/postgres/rows.h"
#include "storage/project_store.h"
#include "storage/records/change.h"

namespace trainyard::postgres {
namespace {

constexpr size_t kLargestGroup = 256;
// Groups up to this size share one prepared plan, made for a few rows: planning each would take as
// long as running it. For more rows the planner must know how many they are.
constexpr size_t kMostForOnePlan = 32;
constexpr absl::Duration kLimitsKnownFor = absl::Seconds(1);
constexpr size_t kMostBytes = 4 << 20;  // of specs in one group

// The job that has taken the uid, request id or name of `made`, if it is the same submission.
// kAlreadyExists: it is another one. kUnavailable: it was deleted meanwhile.
absl::StatusOr<JobRecord> FindConflictingJob(Transaction& transaction, const JobRecord& submitted,
                                             const JobRecord& made) {
  std::vector<JobRecord> rivals;
  for (const pqxx::row& row :
       transaction.Run(kFindRivals, Params(made.uid, made.project, made.job_id, made.request_id))) {
    rivals.push_back(JobOf(row));
  }
  for (const JobRecord& rival : rivals) {
    if (rival.uid != made.uid) continue;
    // Ours: committed by an earlier try whose answer was lost, or a replay under the caller's uid.
    if (SameSubmission(submitted, rival)) return rival;
    return absl::AlreadyExistsError(absl::StrCat("uid ", made.uid, " is taken"));
  }
  for (const JobRecord& rival : rivals) {
    if (made.request_id.empty() || rival.request_id != made.request_id) continue;
    if (SameSubmission(submitted, rival)) return rival;
    return absl::AlreadyExistsError(absl::StrCat("request id '", made.request_id,
                                                 "' was used for job ", rival.job_id,
                                                 ", which differs from this one"));
  }
  if (!rivals.empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat(FormatJobName({made.project, made.job_id}), " exists already"));
  }
  return absl::UnavailableError("submit: a job of the same name was just deleted; try again");
}

// Submissions as columns.
struct Columns {
  std::vector<std::string> uids, projects, job_ids, creators, request_ids, labels, devices, codes,
      messages, specs, plans, rules, second_owners;
  std::vector<int> priorities, min_slots, max_slots, max_restarts, logical_ranks, groups,
      steps_of_slots, most_slots;
  std::vector<int64_t> bytes, steps, backoffs;

  void Add(const JobRecord& j) {
    uids.push_back(j.uid);
    projects.push_back(j.project);
    job_ids.push_back(j.job_id);
    creators.push_back(j.creator);
    request_ids.push_back(j.request_id);
    labels.push_back(MapJson(j.labels));
    priorities.push_back(j.priority);
    min_slots.push_back(j.min_slots);
    max_slots.push_back(StoredMaxSlots(j));
    devices.push_back(j.device);
    bytes.push_back(j.bytes_per_slot);
    steps.push_back(j.total_steps);
    max_restarts.push_back(j.max_restarts);
    logical_ranks.push_back(j.logical_ranks);
    groups.push_back(j.group_ranks);
    steps_of_slots.push_back(j.slot_step);
    most_slots.push_back(StoredMostSlots(j));
    second_owners.emplace_back(j.second_owner ? "t" : "f");
    rules.emplace_back(ArithmeticRuleName(j.arithmetic_rule));
    backoffs.push_back(absl::ToInt64Microseconds(j.backoff));
    codes.push_back(j.reason.code);
    messages.push_back(j.reason.message);
    specs.push_back(ByteaLiteral(j.spec));
    plans.push_back(ByteaLiteral(j.plan_summary));
  }

  Params Values() const {
    return Params(uids, projects, job_ids, creators, request_ids, labels, priorities, min_slots,
                  max_slots, devices, bytes, steps, max_restarts, backoffs, codes, messages, specs,
                  plans, logical_ranks, rules, groups, steps_of_slots, most_slots, second_owners,
                  static_cast<int64_t>(uids.size()));
  }
};

Params ValuesOf(const JobRecord& j) {
  return Params(j.uid, j.project, j.job_id, j.creator, j.request_id, MapJson(j.labels), j.priority,
                j.min_slots, StoredMaxSlots(j), j.device, j.bytes_per_slot, j.total_steps,
                j.max_restarts, j.backoff, j.reason.code, j.reason.message, ByteaLiteral(j.spec),
                ByteaLiteral(j.plan_summary), j.logical_ranks,
                ArithmeticRuleName(j.arithmetic_rule), j.group_ranks, j.slot_step,
                StoredMostSlots(j), j.second_owner);
}

pqxx::result InsertAll(Transaction& transaction, const std::vector<const JobRecord*>& jobs) {
  if (jobs.size() == 1) return transaction.Run(kInsertJob, ValuesOf(*jobs.front()));
  Columns columns;
  for (const JobRecord* job : jobs) columns.Add(*job);
  if (jobs.size() <= kMostForOnePlan) return transaction.Run(kInsertJobs, columns.Values());
  return transaction.RunText(kInsertJobs.text, columns.Values());
}

}  // namespace

std::vector<absl::StatusOr<JobRecord>> Submitter::Submit(absl::Span<const JobRecord> jobs) {
  std::vector<absl::StatusOr<JobRecord>> answers(jobs.size(), absl::UnknownError("not committed"));
  for (size_t begin = 0; begin < jobs.size(); begin += kLargestGroup) {
    Caller own;
    for (size_t i = begin; i < std::min(jobs.size(), begin + kLargestGroup); ++i) {
      absl::StatusOr<JobChange> named = NewJob(jobs[i], absl::UnixEpoch());
      if (named.ok()) {
        own.submissions.push_back({&jobs[i], std::move(named->job), &answers[i]});
      } else {
        answers[i] = named.status();
      }
    }
    if (!own.submissions.empty()) Submit(own);
  }
  return answers;
}

void Submitter::Submit(Caller& own) {
  std::vector<Caller*> callers;
  Group group;
  {
    absl::MutexLock lock(&mu_);
    waiting_.push_back(&own);
    if (!committing_) {
      committing_ = own.commits = true;
    }
    const auto mine = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return own.done || own.commits; };
    mu_.Await(absl::Condition(&mine));
    if (own.done) return;
    for (size_t bytes = 0; !waiting_.empty() && bytes < kMostBytes; waiting_.pop_front()) {
      Caller& next = *waiting_.front();
      if (group.size() + next.submissions.size() > kLargestGroup) break;
      callers.push_back(&next);
      for (Submission& submission : next.submissions) {
        group.push_back(&submission);
        bytes += submission.made.spec.size();
      }
    }
  }
  Commit(group);
  absl::MutexLock lock(&mu_);
  for (Caller* caller : callers) caller->done = true;
  if (waiting_.empty()) {
    committing_ = false;
  } else {
    waiting_.front()->commits = true;
  }
}

void Submitter::Commit(absl::Span<Submission* const> group) {
  const absl::Status status = Insert(group);
  if (status.ok()) return;
  // A submission that the database refuses must not make the others fail; it is found by halving
  // the group. A database that is away refuses all.
  if (group.size() > 1 && !absl::IsUnavailable(status)) {
    Commit(group.subspan(0, group.size() / 2));
    Commit(group.subspan(group.size() / 2));
    return;
  }
  for (Submission* submission : group) *submission->answer = status;
}

// Nothing is asked for most submissions: which projects have a limit is known for a second.
absl::Status Submitter::LearnLimited() {
  const absl::Duration now = SystemClock().SinceBoot();
  if (now - limited_read_ < kLimitsKnownFor) return absl::OkStatus();
  using Names = std::set<std::string>;
  const auto read = [](Transaction& transaction) -> absl::StatusOr<Names> {
    Names names;
    for (const pqxx::row& row : transaction.Run(kProjectsWithJobLimits, Params())) {
      names.insert(row[0].as<std::string>());
    }
    return names;
  };
  TY_ASSIGN_OR_RETURN(limited_, database_.Run("read limits", read, Access::kStatements));
  limited_read_ = now;
  return absl::OkStatus();
}

// Those of projects with a limit come last, in a transaction of their own: others do not wait for
// it.
absl::Status Submitter::Insert(absl::Span<Submission* const> group) {
  TY_RETURN_IF_ERROR(LearnLimited());
  Group free, limited;
  for (Submission* submission : group) {
    (limited_.count(submission->made.project) > 0 ? limited : free).push_back(submission);
  }
  if (!free.empty()) {
    const auto insert = [&](Transaction& transaction) -> absl::Status {
      InsertIn(transaction, free);
      return absl::OkStatus();
    };
    TY_RETURN_IF_ERROR(database_.Run("submit", insert, Access::kStatements));
  }
  if (limited.empty()) return absl::OkStatus();
  return database_.Run(
      "submit", [&](Transaction& transaction) { return InsertWithinLimits(transaction, limited); });
}

void Submitter::InsertIn(Transaction& transaction, absl::Span<Submission* const> group) {
  std::vector<const JobRecord*> jobs;
  for (const Submission* submission : group) jobs.push_back(&submission->made);
  std::map<std::string, absl::Time> created;  // by uid
  for (const pqxx::row& row : InsertAll(transaction, jobs)) {
    created[row[0].as<std::string>()] = absl::FromUnixMicros(row[1].as<int64_t>());
  }
  for (Submission* submission : group) {
    const auto found = created.find(submission->made.uid);
    if (found == created.end()) {
      *submission->answer =
          FindConflictingJob(transaction, *submission->submitted, submission->made);
      continue;
    }
    submission->made.create_time = submission->made.update_time = found->second;
    created.erase(found);  // another one with this uid was not the one that was added
    *submission->answer = submission->made;
  }
}

absl::Status Submitter::InsertWithinLimits(Transaction& transaction,
                                           absl::Span<Submission* const> group) {
  std::set<std::string> projects;
  for (const Submission* submission : group) projects.insert(submission->made.project);
  struct Room {
    int most = 0;
    int64_t left = 0;
  };
  std::map<std::string, Room> rooms;  // of the projects with a limit
  const Params all(std::vector<std::string>(projects.begin(), projects.end()));
  for (const pqxx::row& row : transaction.Run(kLockJobLimits, all)) {
    const auto project = row[0].as<std::string>();
    const int most = row[1].as<int>();
    const auto live =
        transaction.Run(kCountLiveJobs, Params(project, int64_t{most}))[0][0].as<int64_t>();
    rooms[project] = {most, most - live};
  }
  Group admitted;
  std::set<std::pair<std::string, std::string>> known;  // of those admitted: what a replay has, too
  for (Submission* submission : group) {
    const JobRecord& made = submission->made;
    const std::string request = absl::StrCat("request ", made.request_id);
    const std::string name = absl::StrCat("job ", made.job_id);
    const bool again = known.count({made.project, name}) > 0 ||
                       (!made.request_id.empty() && known.count({made.project, request}) > 0);
    const auto room = rooms.find(made.project);
    // One that was committed before needs no room.
    const bool new_one =
        room != rooms.end() && !again &&
        transaction.Run(kFindRivals, Params(made.uid, made.project, made.job_id, made.request_id))
            .empty();
    if (new_one && --room->second.left < 0) {
      *submission->answer = TooManyJobs(made.project, room->second.most);
    } else {
      admitted.push_back(submission);
      known.insert({made.project, name});
      known.insert({made.project, request});
    }
  }
  if (!admitted.empty()) InsertIn(transaction, admitted);
  return absl::OkStatus();
}

}  // namespace trainyard::postgres
