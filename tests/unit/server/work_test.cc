#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/work/actor.h"
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

}  // namespace
}  // namespace trainyard
