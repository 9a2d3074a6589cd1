#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/work/actor.h"
#include "server/work/call_queue.h"
#include "server/work/task_pool.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

TEST(TaskPool, LaterTasksRunInTheirOrder) {
  TaskPool pool(1);
  std::vector<int> order;
  absl::Notification done;
  pool.PostAfter(absl::Milliseconds(40), [&] {
    order.push_back(2);
    done.Notify();
  });
  pool.PostAfter(absl::Milliseconds(10), [&] { order.push_back(1); });
  pool.Post([&] { order.push_back(0); });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kLong));
  pool.Stop();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

// The thread that waits for the time runs what is due: another one must wait for it from then on.
TEST(TaskPool, ALaterTaskThatBlocksHoldsUpNoOther) {
  TaskPool pool(3);
  absl::Notification go_on, last;
  for (int i = 1; i <= 2; ++i) {
    pool.PostAfter(absl::Milliseconds(10 * i), [&] { go_on.WaitForNotification(); });
  }
  pool.PostAfter(absl::Milliseconds(30), [&] { last.Notify(); });
  EXPECT_TRUE(last.WaitForNotificationWithTimeout(kLong));
  go_on.Notify();
  pool.Stop();  // before what its tasks wait for goes
}

// Each thread that comes calls the next one while there is more to do.
TEST(TaskPool, TasksThatBlockGetAllThreads) {
  constexpr int kThreads = 8;
  TaskPool pool(kThreads);
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> inside{0};
    absl::Notification all, gone, may_go;
    for (int i = 0; i < kThreads; ++i) {
      pool.Post([&] {
        if (++inside == kThreads) all.Notify();
        may_go.WaitForNotification();
        if (--inside == 0) gone.Notify();
      });
    }
    ASSERT_TRUE(all.WaitForNotificationWithTimeout(kLong)) << inside << " of " << kThreads;
    may_go.Notify();
    ASSERT_TRUE(gone.WaitForNotificationWithTimeout(kLong));
  }
}

TEST(TaskPool, StopDropsWhatWaitsAndWaitsForWhatRuns) {
  auto pool = std::make_unique<TaskPool>(1);
  absl::Notification began, go_on;
  std::atomic<bool> finished{false}, dropped_ran{false};
  pool->Post([&] {
    began.Notify();
    go_on.WaitForNotification();
    finished = true;
  });
  ASSERT_TRUE(began.WaitForNotificationWithTimeout(kLong));
  pool->Post([&] { dropped_ran = true; });
  pool->PostAfter(absl::Hours(1), [&] { dropped_ran = true; });
  std::thread stopper([&] { pool->Stop(); });
  go_on.Notify();
  stopper.join();
  EXPECT_TRUE(finished);
  pool.reset();
}

TEST(TaskPool, WithoutThreadsRunsOnlyWhenTold) {
  FakeClock clock;
  TaskPool pool(0, clock);
  int ran = 0;
  pool.Post([&] { ++ran; });
  pool.PostAfter(absl::Seconds(5), [&] { ++ran; });
  EXPECT_TRUE(pool.RunOne());
  EXPECT_FALSE(pool.RunOne());
  clock.Advance(absl::Seconds(5));
  EXPECT_TRUE(pool.RunOne());
  EXPECT_EQ(ran, 2);
}

class Counter : public Actor {
 public:
  Counter(TaskPool& pool, int rounds) : Actor(pool), rounds_(rounds) {}
  void Work() override {
    EXPECT_EQ(inside_.fetch_add(1), 0) << "never twice at once";
    ++plain_;  // no lock: one line of work
    const int seen = asked_.load();
    inside_.fetch_sub(1);
    if (seen == rounds_ && !done_.HasBeenNotified()) done_.Notify();
  }
  std::atomic<int> asked_{0};
  absl::Notification done_;
  int plain_ = 0;

 private:
  const int rounds_;
  std::atomic<int> inside_{0};
};

TEST(Actor, NeverRunsTwiceAtOnceAndLosesNoPoke) {
  constexpr int kThreads = 4, kPokes = 2000;
  TaskPool pool(4);
  const auto counter = std::make_shared<Counter>(pool, kThreads * kPokes);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kPokes; ++i) {
        counter->asked_.fetch_add(1);
        counter->Poke();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(counter->done_.WaitForNotificationWithTimeout(kLong)) << "the last poke was lost";
  pool.Stop();
  EXPECT_GT(counter->plain_, 0);
}

// Rests after its first work.
class Resting : public Actor {
 public:
  explicit Resting(TaskPool& pool) : Actor(pool) {}
  void Work() override {
    if (++works == 1) Rest(absl::Seconds(5));
  }
  int works = 0;
};

TEST(Actor, WorksOnceAfterARestHoweverOftenItIsPokedMeanwhile) {
  FakeClock clock;
  TaskPool pool(0, clock);
  const auto actor = std::make_shared<Resting>(pool);
  const auto poke_and_run = [&](int pokes) {
    for (int i = 0; i < pokes; ++i) actor->Poke();
    while (pool.RunOne()) {
    }
    return actor->works;
  };
  EXPECT_EQ(poke_and_run(1), 1);
  EXPECT_EQ(poke_and_run(3), 1);
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(poke_and_run(0), 2);
  EXPECT_EQ(poke_and_run(1), 3);
}

// A call that says its name when it runs, and its name with a minus when it is refused.
QueuedCall Named(const std::string& name, std::vector<std::string>& said, int64_t bytes = 1) {
  return {.bytes = bytes,
          .run = [name, &said] { said.push_back(name); },
          .refuse = [name, &said](const absl::Status&) { said.push_back("-" + name); }};
}

void Refuse(const std::vector<QueuedCall>& calls) {
  for (const QueuedCall& call : calls) call.refuse(absl::ResourceExhaustedError("full"));
}

TEST(FairOrder, PrincipalsTakeTurnsHoweverManyCallsOneHas) {
  FairOrder order({.most_of_one = 2});
  std::vector<std::string> said;
  for (int i = 0; i < 4; ++i) Refuse(order.Add("many", Named("m" + std::to_string(i), said)));
  Refuse(order.Add("few", Named("f0", said)));
  Refuse(order.Add("few", Named("f1", said)));
  std::vector<std::string> running;
  while (auto turn = order.Next()) {
    turn->call.run();
    running.push_back(turn->principal);
  }
  // Each has its two; the third of `many` waits although nobody else wants anything.
  EXPECT_EQ(said, (std::vector<std::string>{"f0", "m0", "f1", "m1"}));
  order.Done("many");
  ASSERT_TRUE(order.Next().has_value());
  EXPECT_FALSE(order.Next().has_value());
}

TEST(FairOrder, WhoFillsTheQueueIsRefusedAndNotWhoComesLate) {
  FairOrder order({.most_waiting_bytes = 4, .least_bytes = 1});
  std::vector<std::string> said;
  for (int i = 0; i < 5; ++i) Refuse(order.Add("many", Named("m" + std::to_string(i), said)));
  EXPECT_EQ(said, (std::vector<std::string>{"-m4"}));
  Refuse(order.Add("few", Named("f0", said)));
  EXPECT_EQ(said, (std::vector<std::string>{"-m4", "-m3"}));
  Refuse(order.Add("large", Named("l0", said, 5)));  // larger than the queue
  EXPECT_EQ(said, (std::vector<std::string>{"-m4", "-m3", "-l0"}));
}

TEST(CallQueue, RunsWhatItTookAndRefusesTheRestAtItsEnd) {
  CallQueue queue({.threads = 1, .most_waiting_bytes = int64_t{1} << 60});  // never full
  absl::Notification began, go_on;
  std::atomic<int> ran{0}, refused{0};
  const auto refuse = [&](const absl::Status& why) {
    EXPECT_TRUE(absl::IsUnavailable(why));
    ++refused;
  };
  queue.Post("a", {.run =
                       [&] {
                         began.Notify();
                         go_on.WaitForNotification();
                         ++ran;
                       },
                   .refuse = refuse});
  ASSERT_TRUE(began.WaitForNotificationWithTimeout(kLong));
  queue.Post("b", {.run = [&] { ++ran; }, .refuse = refuse});
  std::thread stopper([&] { queue.Stop(); });
  // Until Stop has begun calls are taken; from then on they are refused at once.
  int posted = 1;
  while (refused == 0) {
    queue.Post("b", {.run = [&] { ++ran; }, .refuse = refuse});
    ++posted;
  }
  go_on.Notify();
  stopper.join();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(refused, posted);
}

}  // namespace
}  // namespace trainyard
