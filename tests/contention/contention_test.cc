// The real scheduler loops, agents without workers, and users, all at once on a PostgreSQL of their
// own with 20,000 jobs that wait: what transactions do to each other while they are open.
//
// TRAINYARD_SEED draws who does what; TRAINYARD_CONTENTION_SECONDS how long they do it.

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/scheduler/loop.h"
#include "storage/postgres/postgres.h"
#include "storage/records/reason_codes.h"
#include "tests/contention/checks.h"
#include "tests/contention/null_agents.h"
#include "tests/contention/users.h"

namespace trainyard::testing {
namespace {

constexpr int kJobs = 20000;
constexpr int kSilenced = 5;  // nodes
constexpr size_t kToldAtOnce = 3000;
constexpr absl::Duration kBound = absl::Seconds(60);

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// One replica of the server, as far as the scheduler goes.
struct Replica {
  std::unique_ptr<Stores> stores;
  std::unique_ptr<SchedulerLoop> loop;
};

class Contention : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::err);
    auto started = PostgresFixture::Start(
        {.settings = {"log_lock_waits=on", "deadlock_timeout=1s", "max_connections=100"}});
    ASSERT_TRUE(started.ok()) << started.status();
    postgres_ = *std::move(started);
    ASSERT_EQ(postgres::Migrate(postgres_->Conninfo()), absl::OkStatus());
    for (const char* holder : {"a/1", "b/1"}) {
      Replica& replica = replicas_.emplace_back();
      auto stores = postgres::Open(postgres_->Conninfo());
      ASSERT_TRUE(stores.ok()) << stores.status();
      replica.stores = *std::move(stores);
      replica.loop = std::make_unique<SchedulerLoop>(
          replica.stores->scheduler(), replica.stores->wakeups(), SystemClock(),
          LoopOptions{.holder = holder, .lease = absl::Seconds(3)});
    }
    users_ = std::make_unique<Users>(*replicas_[1].stores, seed_);
    agents_ =
        std::make_unique<NullAgents>(*replicas_[1].stores, NullAgents::Options{.seed = seed_});
  }

  void TearDown() override {
    users_.reset();
    agents_.reset();
    replicas_.clear();
  }

  // Waits until `done` says so.
  template <typename Done>
  static bool Eventually(const Done& done) {
    for (const absl::Time end = absl::Now() + kBound; absl::Now() < end;) {
      if (done()) return true;
      absl::SleepFor(absl::Milliseconds(200));
    }
    return false;
  }

  void ExpectNothingBroken(const char* when) {
    const auto broken = BrokenInvariants(*postgres_);
    ASSERT_TRUE(broken.ok()) << broken.status();
    EXPECT_EQ(*broken, "") << when << ", seed " << seed_;
  }

  // Jobs that wait, and nobody said for what.
  int64_t NotTold() {
    // Not through the stores of the one that leads: the readers of a queue take turns.
    const auto snapshot = replicas_[0].stores->scheduler().ReadSnapshot();
    if (!snapshot.ok()) return -1;
    int64_t count = 0;
    for (const JobRecord* job : WaitingJobsOf(*snapshot)) {
      const std::string& code = job->reason.code;
      const bool told = code == reason::kWaitingForSlots || code == reason::kBehindOthers ||
                        code == reason::kFitsNoNode || code == reason::kNoNodes ||
                        code == reason::kBackoff;
      count += told ? 0 : 1;
    }
    return count;
  }

  int Unreachable() {
    const auto nodes = replicas_[1].stores->fleet().ListNodes();
    int count = 0;
    if (!nodes.ok()) return -1;
    for (const NodeRecord& node : *nodes) count += node.reachable ? 0 : 1;
    return count;
  }

  void Say(const char* what) {
    std::printf("%5.1f s  %s\n", absl::ToDoubleSeconds(absl::Now() - begin_), what);
  }

  void TellManyAtOnce();
  void Work(absl::Duration time);
  void CheckCounts(const Updates& updates);

  const absl::Time begin_ = absl::Now();
  const uint64_t seed_ = static_cast<uint64_t>(FromEnvironment("TRAINYARD_SEED", 1));
  std::unique_ptr<PostgresFixture> postgres_;
  std::vector<Replica> replicas_;
  std::unique_ptr<Users> users_;
  std::unique_ptr<NullAgents> agents_;
};

// A plan that was made for arrays of any length takes them for short. PostgreSQL may choose it from
// the sixth time on, where it knows the table.
void Contention::TellManyAtOnce() {
  ASSERT_TRUE(postgres_->Query("postgres", "ANALYZE").ok());
  SchedulerStore& store = replicas_[0].stores->scheduler();
  const auto lease = store.Lead("a/0", absl::Seconds(10), std::nullopt);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const auto snapshot = store.ReadSnapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  Decisions decisions;
  for (const JobRecord* job : WaitingJobsOf(*snapshot)) {
    decisions.reasons.push_back({.job_uid = job->uid, .job_version = job->version});
    if (decisions.reasons.size() == kToldAtOnce) break;
  }
  absl::Duration first = absl::InfiniteDuration(), later = absl::InfiniteDuration();
  for (int i = 0; i < 8; ++i) {
    for (ReasonUpdate& update : decisions.reasons) update.reason = {"TEST", absl::StrCat(i)};
    const absl::Time begin = absl::Now();
    EXPECT_EQ(store.Apply(lease->epoch, decisions).status(), absl::OkStatus());
    absl::Duration& best = i < 5 ? first : later;
    best = std::min(best, absl::Now() - begin);
  }
  std::printf("told %d jobs in %s at first, in %s later\n", static_cast<int>(kToldAtOnce),
              absl::FormatDuration(first).c_str(), absl::FormatDuration(later).c_str());
  EXPECT_LT(later, 3 * first) << "another plan was chosen";
  ASSERT_EQ(store.StandDown("a/0"), absl::OkStatus());
}

void Contention::Work(absl::Duration time) {
  const absl::Time end = absl::Now() + time;
  agents_->Silence(kSilenced);
  users_->Start();
  EXPECT_TRUE(Eventually([this] { return Unreachable() == kSilenced; }))
      << Unreachable() << " nodes are lost";
  Say("lost some nodes");
  ExpectNothingBroken("while all work and nodes were just lost");
  Say("checked");
  ASSERT_EQ(agents_->Return(), absl::OkStatus());
  replicas_[0].loop->Stop();  // the other one follows
  EXPECT_TRUE(Eventually([this] { return replicas_[1].loop->leader(); }));
  const int64_t finished = agents_->finished();
  EXPECT_TRUE(Eventually([&] { return agents_->finished() > finished; }))
      << "nothing ends under the other leader";
  Say("changed the leader");
  while (absl::Now() < end && !HasFailure()) {
    absl::SleepFor(std::min(absl::Seconds(2), end - absl::Now()));
    ExpectNothingBroken("while all work");
  }
}

void Contention::CheckCounts(const Updates& updates) {
  const auto ended = postgres_->Query("postgres", "SELECT count(*) FROM ended_jobs");
  int64_t jobs = 0;
  ASSERT_TRUE(ended.ok() && absl::SimpleAtoi(*ended, &jobs));
  jobs += users_->deleted();
  std::printf(
      "%ld jobs ended, of them %ld ranks finished; updates of rows of jobs: %.2f per ended job and "
      "%ld of reasons, %ld of one job at most; %ld renewals, %ld put off\n",
      jobs, agents_->finished(), static_cast<double>(updates.others) / static_cast<double>(jobs),
      updates.told, updates.told_most, agents_->renewals(), agents_->put_off());
  EXPECT_GT(jobs, 500) << "too few to tell anything";
  EXPECT_LE(updates.others, 4 * jobs);
  EXPECT_LE(updates.told, 3 * users_->submitted()) << "the queue is told the same over and over";
  EXPECT_EQ(agents_->put_off(), 0) << "renewals of leases met locks";
  EXPECT_EQ(agents_->refused(), 0) << "nodes were lost that renewed their leases";
  EXPECT_EQ(agents_->complaint(), "");
  EXPECT_EQ(users_->complaint(), "");
}

TEST_F(Contention, AQueueOf20000IsServedWhileAllWriteAtOnce) {
  ASSERT_EQ(users_->Fill(kJobs, 16), absl::OkStatus());
  Say("filled");
  TellManyAtOnce();
  Say("told");
  ASSERT_EQ(CountUpdates(*postgres_), absl::OkStatus());
  ASSERT_EQ(agents_->Register(), absl::OkStatus());
  agents_->Start();
  for (Replica& replica : replicas_) replica.loop->Start();
  Work(absl::Seconds(FromEnvironment("TRAINYARD_CONTENTION_SECONDS", 7)));
  Say("worked");
  users_->Stop();
  agents_->StopRunning();
  EXPECT_TRUE(Eventually([this] { return NotTold() == 0; }))
      << NotTold() << " jobs wait and nobody said for what";
  replicas_[1].loop->Stop();
  Say("quiet");
  ExpectNothingBroken("in the end");
  const auto updates = CountedUpdates(*postgres_);
  ASSERT_TRUE(updates.ok()) << updates.status();
  CheckCounts(*updates);
  const auto waits = LongWaits(*postgres_);
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_EQ(*waits, "");
  Say("checked");
}

}  // namespace
}  // namespace trainyard::testing
