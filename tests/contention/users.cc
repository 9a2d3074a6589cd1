#include "tests/contention/users.h"

#include "absl/strings/str_cat.h"

namespace trainyard::testing {
namespace {

const Reason kAsked{"TEST", "a test asked"};
constexpr absl::Duration kBetweenSubmissions = absl::Milliseconds(5);
constexpr absl::Duration kBetweenChanges = absl::Milliseconds(2);

JobName NameOf(int number) { return {"default", absl::StrCat("job-", number)}; }

}  // namespace

JobRecord Users::Describe(int number) const {
  JobRecord job;
  const JobName name = NameOf(number);
  job.project = name.project;
  job.job_id = job.request_id = name.job_id;
  job.spec = std::string(1500, 's');
  job.plan_summary = std::string(500, 'p');
  job.priority = number % 5;
  job.min_slots = job.max_slots = 1 << number % 3;
  job.device = number % 4 == 0 ? "CPU" : number % 4 == 1 ? "CUDA" : "";
  job.bytes_per_slot = number % 2 == 0 ? int64_t{1} << 30 : int64_t{4} << 30;
  job.total_steps = 10;
  job.backoff = absl::Milliseconds(100);
  return job;
}

absl::Status Users::Fill(int count, int threads) {
  std::atomic<int> next{0};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&] {
      for (int number = next++; number < count; number = next++) {
        Check(stores_.jobs().Submit(Describe(number)).status());
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  submitted_ = count;
  absl::MutexLock lock(&mu_);
  return complaint_.empty() ? absl::OkStatus() : absl::InternalError(complaint_);
}

void Users::Start() {
  threads_.emplace_back([this] { Submit(); });
  threads_.emplace_back([this] { ChangeTheirMinds(); });
}

void Users::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

std::string Users::complaint() const {
  absl::MutexLock lock(&mu_);
  return complaint_;
}

// A job may be in any state by now, or gone; the database may be busy. Nothing else is expected.
void Users::Check(const absl::Status& status) {
  if (status.ok() || absl::IsUnavailable(status) || absl::IsNotFound(status) ||
      absl::IsFailedPrecondition(status)) {
    return;
  }
  absl::MutexLock lock(&mu_);
  if (complaint_.empty()) complaint_ = status.ToString();
}

bool Users::WaitToStop(absl::Duration most) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&stopping_), most);
}

void Users::Submit() {
  while (!WaitToStop(kBetweenSubmissions)) {
    const absl::Status status = stores_.jobs().Submit(Describe(submitted_)).status();
    Check(status);
    if (!status.ok()) continue;  // the same again: its request id finds it
    ++submitted_;
    stores_.wakeups().Wake("queue");
  }
}

void Users::ChangeTheirMinds() {
  std::mt19937_64 random(seed_);
  while (!WaitToStop(kBetweenChanges)) ChangeOne(random);
}

void Users::ChangeOne(std::mt19937_64& random) {
  // Those that run now have the highest priority and came first.
  const int among = random() % 2 == 0 ? submitted_.load() : submitted_ / 5;
  const JobName name = NameOf(static_cast<int>(random() % static_cast<uint64_t>(among)));
  switch (random() % 6) {
    case 0: {
      const absl::StatusOr<JobRecord> job = stores_.jobs().Cancel(name, 0, kAsked);
      Check(job.status());
      if (!job.ok() || !IsTerminal(job->state)) break;
      const absl::Status deleted = stores_.jobs().Delete(name, 0);
      Check(deleted);
      deleted_ += deleted.ok() ? 1 : 0;
      break;
    }
    case 1:
    case 2:
      Check(stores_.jobs().Pause(name, 0, kAsked, absl::Milliseconds(500)).status());
      break;
    default:
      Check(stores_.jobs().Resume(name, 0, kAsked).status());
      break;
  }
  for (const char* topic : {"queue", "fleet"}) stores_.wakeups().Wake(topic);
}

}  // namespace trainyard::testing
