#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "storage/memory/memory_stores.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 200;  // of the job that is watched

class WatchTest : public ::testing::Test {
 protected:
  explicit WatchTest(const ServerOptions& options = Rig::FastOptions()) : rig_(options) {
    agent_ = std::make_unique<ScriptedAgent>(rig_);
    agent_->Register("n1", 1);
    agent_->Welcomed();
    v1::Job job = SmallJob("a");
    job.mutable_spec()->mutable_training()->set_steps(kSteps);
    name_ = rig_.Submit(job).name();
    key_ = agent_->NextDesired(1).assignments(0).key();
  }
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> reader;
  };
  Stream Watch(int64_t after) {
    v1::WatchJobRequest request;
    request.set_name(name_);
    request.set_after_sequence(after);
    Stream stream{Rig::Context(), nullptr};
    stream.reader = rig_.jobs().WatchJob(stream.context.get(), request);
    return stream;
  }
  void Finish(EventScript& script) {
    agent_->SendEvents(key_, {script.Finished(kSteps), script.Exited(0)});
    agent_->NextAck();
  }

  Rig rig_;
  std::unique_ptr<ScriptedAgent> agent_;
  std::string name_;
  v1::RankKey key_;
};

TEST_F(WatchTest, EveryItemComesOnceInOrderAndThenTheEnd) {
  Stream stream = Watch(0);
  EventScript script;
  agent_->SendEvents(key_, {script.Started(), script.Restored(0)});
  for (int step = 1; step <= 5; ++step) agent_->SendEvents(key_, {script.Metrics(step, 1.0)});
  Finish(script);
  int64_t expected = 1;
  int metrics = 0;
  bool ended = false;
  v1::WatchJobResponse response;
  while (stream.reader->Read(&response)) {
    EXPECT_FALSE(ended) << "the end is the last message";
    if (response.has_item()) {
      EXPECT_EQ(response.item().sequence(), expected++);
      metrics += response.item().has_metrics();
    } else if (response.has_end()) {
      ended = true;
      EXPECT_EQ(response.end().job().state(), v1::SUCCEEDED);
    }
  }
  EXPECT_TRUE(stream.reader->Finish().ok());
  EXPECT_TRUE(ended);
  EXPECT_EQ(metrics, 5);
}

TEST_F(WatchTest, ResumedWatchMissesNothingAndRepeatsNothing) {
  EventScript script;
  agent_->SendEvents(key_, {script.Started(), script.Restored(0)});
  std::thread writer([&] {
    for (int step = 1; step <= 200; ++step) {
      agent_->SendEvents(key_, {script.Metrics(step, 1.0 / step)});
    }
    Finish(script);
  });
  int64_t cursor = 0;
  int metrics = 0;
  bool ended = false;
  for (int round = 0; !ended && round < 1000; ++round) {
    Stream stream = Watch(cursor);
    v1::WatchJobResponse response;
    // Breaks off after a few items, each time elsewhere.
    for (int read = 0; read <= round % 7 && stream.reader->Read(&response); ++read) {
      if (response.has_item()) {
        ASSERT_EQ(response.item().sequence(), cursor + 1);
        cursor = response.item().sequence();
        metrics += response.item().has_metrics();
      }
      ended = response.has_end();
      if (ended) break;
    }
    stream.context->TryCancel();
    stream.reader->Finish();
  }
  writer.join();
  EXPECT_TRUE(ended);
  EXPECT_EQ(metrics, 200);
}

TEST_F(WatchTest, HeartbeatSaysHowFarEverythingWasSent) {
  Stream stream = Watch(0);
  v1::WatchJobResponse response;
  int64_t last = 0;
  while (stream.reader->Read(&response)) {
    if (response.has_item()) last = response.item().sequence();
    if (response.has_heartbeat()) break;
  }
  EXPECT_GE(last, 2);
  EXPECT_EQ(response.heartbeat().sequence(), last);
  stream.context->TryCancel();
}

TEST_F(WatchTest, EndedJobGivesItsFeedAndEnds) {
  EventScript script;
  agent_->SendEvents(key_, {script.Started(), script.Restored(0), script.Metrics(1, 1.0)});
  Finish(script);
  const auto job = rig_.stores().jobs().Get({"default", "a"});
  const auto feed = rig_.stores().jobs().ReadFeed(job->uid, 0, 100);
  ASSERT_TRUE(feed.ok());
  for (int64_t after : {int64_t{0}, feed->back().sequence}) {
    Stream stream = Watch(after);
    v1::WatchJobResponse response, last;
    while (stream.reader->Read(&response)) last = response;
    EXPECT_TRUE(last.has_end());
    EXPECT_TRUE(stream.reader->Finish().ok());
  }
}

TEST_F(WatchTest, WrongRequestsAreRefused) {
  Stream negative = Watch(-1);
  v1::WatchJobResponse response;
  EXPECT_FALSE(negative.reader->Read(&response));
  EXPECT_EQ(negative.reader->Finish().error_code(), grpc::INVALID_ARGUMENT);
  name_ = "projects/default/jobs/none";
  Stream none = Watch(0);
  EXPECT_FALSE(none.reader->Read(&response));
  EXPECT_EQ(none.reader->Finish().error_code(), grpc::NOT_FOUND);
}

TEST_F(WatchTest, CursorPastTheEndIsRefusedWithTheNewestOne) {
  EventScript script;
  agent_->SendEvents(key_, {script.Started(), script.Restored(0), script.Metrics(1, 1.0)});
  agent_->NextAck();
  // Submitted, STARTING, the attempt, RUNNING, one point.
  const auto job = rig_.stores().jobs().Get({"default", "a"});
  const auto feed = rig_.stores().jobs().ReadFeed(job->uid, 0, 100);
  ASSERT_TRUE(feed.ok());
  const int64_t newest = feed->back().sequence;
  const auto end_of = [&](int64_t after) {
    Stream stream = Watch(after);
    v1::WatchJobResponse response;
    while (stream.reader->Read(&response)) {
    }
    return stream.reader->Finish();
  };
  for (const int64_t after : {newest + 1, newest + 1000, std::numeric_limits<int64_t>::max()}) {
    const grpc::Status status = end_of(after);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE) << after;
    EXPECT_THAT(status.error_message(),
                HasSubstr(absl::StrCat("after_sequence: found ", after, ", and the newest item of ",
                                       name_, " is ", newest)));
  }
  EXPECT_EQ(end_of(-1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Stream at_the_end = Watch(newest);  // waits for what comes next
  agent_->SendEvents(key_, {script.Metrics(2, 1.0)});
  v1::WatchJobResponse response;
  while (at_the_end.reader->Read(&response) && !response.has_item()) {
  }
  EXPECT_EQ(response.item().sequence(), newest + 1);
  at_the_end.context->TryCancel();
}

TEST_F(WatchTest, WatchOfADeletedJobEnds) {
  Stream stream = Watch(0);
  // A second job with the watch open; it is cancelled and deleted under it.
  const std::string kept = name_;
  name_ = rig_.Submit(SmallJob("b")).name();
  Stream doomed = Watch(1);
  v1::CancelJobRequest cancel;
  cancel.set_name(name_);
  v1::Job job;
  v1::WatchJobResponse response;
  ASSERT_TRUE(doomed.reader->Read(&response)) << "open: a heartbeat came";
  ASSERT_TRUE(rig_.jobs().CancelJob(Rig::Context().get(), cancel, &job).ok());
  v1::DeleteJobRequest remove;
  remove.set_name(name_);
  google::protobuf::Empty empty;
  ASSERT_TRUE(rig_.jobs().DeleteJob(Rig::Context().get(), remove, &empty).ok());
  bool ended = false;
  while (doomed.reader->Read(&response)) ended = ended || response.has_end();
  // Either it saw the end before the deletion, or it is told.
  const grpc::Status status = doomed.reader->Finish();
  EXPECT_TRUE(ended ? status.ok() : status.error_code() == grpc::NOT_FOUND)
      << status.error_message();
  stream.context->TryCancel();
}

TEST_F(WatchTest, StoreThatWasAwayIsNotNoticedByAWatcher) {
  Stream stream = Watch(0);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream.reader->Read(&response));
  rig_.memory().SetAway(true);
  rig_.memory().SetAway(false);
  EventScript script;
  agent_->SendEvents(key_, {script.Started(), script.Restored(0), script.Metrics(1, 1.0)});
  Finish(script);
  int64_t cursor = 1;
  while (stream.reader->Read(&response)) {
    if (!response.has_item()) continue;
    EXPECT_EQ(response.item().sequence(), ++cursor);
  }
  EXPECT_TRUE(stream.reader->Finish().ok());
}

TEST_F(WatchTest, MetricsStreamAndEndWithTheJob) {
  v1::StreamMetricsRequest request;
  request.set_job(name_);
  const auto context = Rig::Context();
  const auto stream = rig_.metrics().StreamMetrics(context.get(), request);
  EventScript script;
  agent_->SendEvents(
      key_, {script.Started(), script.Restored(0), script.Metrics(1, 3.5), script.Metrics(2, 2.5)});
  Finish(script);
  v1::StreamMetricsResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.point().point().step(), 1);
  EXPECT_EQ(response.point().point().values().at("loss"), 3.5);
  EXPECT_EQ(response.point().attempt(), 1);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.point().point().step(), 2);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(WatchTest, DrainEndsEveryStreamWithUnavailable) {
  Stream stream = Watch(0);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream.reader->Read(&response));
  const absl::Time begin = absl::Now();
  rig_.server().Drain();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(4)) << "nothing had to be cancelled";
  while (stream.reader->Read(&response)) {
  }
  const grpc::Status status = stream.reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "server is draining");
  const grpc::Status agent = agent_->Finish();
  EXPECT_EQ(agent.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(agent.error_message(), "server is draining");
}

TEST_F(WatchTest, RestartedServerGoesOnWhereTheWatcherWas) {
  Stream stream = Watch(0);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream.reader->Read(&response));
  const int64_t cursor = response.item().sequence();
  rig_.Restart();
  while (stream.reader->Read(&response)) {
  }
  stream.reader->Finish();
  Stream again = Watch(cursor);
  ASSERT_TRUE(again.reader->Read(&response));
  EXPECT_EQ(response.item().sequence(), cursor + 1);
  again.context->TryCancel();
}

TEST_F(WatchTest, ThousandWatchersCostNoThreads) {
  const auto threads = [] {
    int count = 0;
    FILE* status = fopen("/proc/self/status", "r");
    char line[256];
    while (fgets(line, sizeof(line), status) != nullptr) sscanf(line, "Threads: %d", &count);
    fclose(status);
    return count;
  };
  std::vector<Stream> streams;
  v1::WatchJobResponse response;
  for (int i = 0; i < 50; ++i) streams.push_back(Watch(0));
  for (Stream& stream : streams) ASSERT_TRUE(stream.reader->Read(&response));
  const int before = threads();
  for (int i = 0; i < 500; ++i) {
    streams.push_back(Watch(0));
    ASSERT_TRUE(streams.back().reader->Read(&response));
  }
  EXPECT_LT(threads(), before + 20);
  EventScript script;
  agent_->SendEvents(key_, {script.Started(), script.Restored(0), script.Metrics(1, 1.0)});
  Finish(script);
  for (Stream& stream : streams) {
    v1::WatchJobResponse last;
    while (stream.reader->Read(&response)) last = response;
    EXPECT_TRUE(last.has_end());
    EXPECT_TRUE(stream.reader->Finish().ok());
  }
}

// Nothing but hints wakes these watchers.
class HintedWatchTest : public WatchTest {
 protected:
  static ServerOptions Options() {
    ServerOptions options = Rig::FastOptions();
    options.watch.heartbeat = absl::Hours(1);
    options.fleet.lease = absl::Hours(1);
    return options;
  }
  HintedWatchTest() : WatchTest(Options()) {}
};

TEST_F(HintedWatchTest, LostHintsAreMadeUpForByOneForAllJobs) {
  Stream stream = Watch(0);
  v1::WatchJobResponse response;
  while (stream.reader->Read(&response) && !response.item().has_attempt_started()) {
  }
  // As another replica does it whose hint is lost.
  const std::string id = name_.substr(name_.rfind('/') + 1);
  ASSERT_TRUE(rig_.stores().jobs().Cancel({"default", id}, 0, {"TEST", "a test"}).ok());
  rig_.stores().wakeups().Wake("job:");
  ASSERT_TRUE(stream.reader->Read(&response));
  EXPECT_EQ(response.item().state().to(), v1::CANCELLING);
  stream.context->TryCancel();
}

// This server's watchers need no wake-up for what it stores itself; those of others, of which there
// are none here, get one.
class TellingStores : public MemoryStores {
 public:
  class TellingWakeups : public LocalWakeups {
   public:
    void Wake(const std::string& topic) override {
      feeds += topic.rfind("job:", 0) == 0 ? 1 : 0;
      LocalWakeups::Wake(topic);
    }
    void WakeOthers(const std::string&) override { ++others; }

    std::atomic<int> feeds = 0;
    std::atomic<int> others = 0;
  };

  TellingStores() : MemoryStores(SystemClock()) {}
  TellingWakeups& wakeups() override { return telling_; }

 private:
  TellingWakeups telling_;
};

TEST(ToldWatch, GetsWhatItsServerStoredWithoutAWakeUp) {
  ServerOptions options = Rig::FastOptions();
  options.watch.heartbeat = absl::Hours(1);
  options.fleet.lease = absl::Hours(1);
  Rig rig(std::make_unique<TellingStores>(), options);
  auto& wakeups = static_cast<TellingStores&>(rig.stores()).wakeups();
  ScriptedAgent agent(rig);
  agent.Register("n1", 1);
  agent.Welcomed();
  v1::Job job = SmallJob("a");
  job.mutable_spec()->mutable_training()->set_steps(kSteps);
  const std::string name = rig.Submit(job).name();
  const v1::RankKey key = agent.NextDesired(1).assignments(0).key();
  v1::WatchJobRequest request;
  request.set_name(name);
  const auto context = Rig::Context();
  const auto stream = rig.jobs().WatchJob(context.get(), request);
  v1::WatchJobResponse response;
  int64_t cursor = 0;
  const auto read_until = [&](const std::function<bool()>& wanted) {
    while (stream->Read(&response)) {
      if (response.has_item()) EXPECT_EQ(response.item().sequence(), ++cursor);
      if (wanted()) return true;
    }
    return false;
  };
  ASSERT_TRUE(read_until([&] { return response.item().has_attempt_started(); }));
  EventScript script;
  agent.SendEvents(key, {script.Started(), script.Restored(0)});
  ASSERT_TRUE(read_until([&] { return response.item().state().to() == v1::RUNNING; }));
  for (int step = 1; step <= 20; ++step) {
    agent.SendEvents(key, {script.Metrics(step, 1.0)});
    if (step % 3 == 0) continue;  // some together
    ASSERT_TRUE(read_until([&] { return response.item().metrics().step() == step; }));
  }
  agent.SendEvents(key, {script.Finished(kSteps), script.Exited(0)});
  ASSERT_TRUE(read_until([&] { return response.has_end(); }));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_GT(wakeups.others, 10) << "one for each batch of events; the last may be on the way";
  EXPECT_LT(wakeups.feeds, 5) << "for the submission and the placement";
}

class SlowClientTest : public WatchTest {
 protected:
  // More than a client that reads takes for a batch, under a sanitizer on a busy machine.
  static constexpr absl::Duration kLongestWrite = absl::Seconds(2);

  static ServerOptions Options() {
    ServerOptions options = Rig::FastOptions();
    options.watch.longest_write = kLongestWrite;
    options.fleet.lease = absl::Hours(1);  // the agent says nothing while all of it is stored
    return options;
  }
  SlowClientTest() : WatchTest(Options()) {}
};

TEST_F(SlowClientTest, ClientThatReadsNothingIsDroppedAndDelaysNobody) {
  Stream slow = Watch(0);
  Stream quick = Watch(0);
  EventScript script;
  agent_->SendEvents(key_, {script.Started(), script.Restored(0)});
  std::atomic<bool> quick_ended{false};
  std::atomic<int64_t> quick_read{0};
  std::thread reader([&] {
    v1::WatchJobResponse response;
    while (quick.reader->Read(&response)) {
      quick_ended = response.has_end();
      ++quick_read;
    }
  });
  const std::string text(4000, 'x');
  const auto send = [&](int count) {
    std::vector<v1::RankEvent> events;
    for (int j = 0; j < count; ++j) {
      events.push_back(script.Started());
      events.back().mutable_notice()->set_message(text);
    }
    agent_->SendEvents(key_, events);
  };
  // Far more than the flow control of one stream takes, and for longer than a write may last.
  const absl::Time enough = absl::Now() + 2 * kLongestWrite;
  for (int i = 0; i < 60; ++i) send(100);
  while (absl::Now() < enough) {
    const int64_t before = quick_read;
    send(1);
    while (quick_read == before && absl::Now() < enough) std::this_thread::yield();
  }
  Finish(script);
  reader.join();
  EXPECT_TRUE(quick_ended);
  EXPECT_TRUE(quick.reader->Finish().ok());
  // The slow one wakes up late: it was dropped before the end.
  v1::WatchJobResponse response;
  bool slow_ended = false;
  while (slow.reader->Read(&response)) slow_ended = response.has_end();
  EXPECT_FALSE(slow_ended);
  EXPECT_EQ(slow.reader->Finish().error_code(), grpc::CANCELLED);
}

}  // namespace
}  // namespace trainyard
