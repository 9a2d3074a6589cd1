#include "clients/cpp/job_watcher.h"

#include <grpcpp/grpcpp.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "clients/cpp/client.h"
#include "clients/cpp/log_follower.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainyard/v1/job_service.grpc.pb.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;

// A feed of ten items behind a server that misbehaves as each test asks: one script per stream.
class FakeJobs : public v1::JobService::Service {
 public:
  struct Script {
    int items = 100;               // so many, then the stream breaks (if not at the end)
    int skip = 0;                  // leave this sequence out
    int overlap = 0;               // start so many items before the cursor
    bool hang = false;             // then silence
    bool lying_heartbeat = false;  // claims that item 10 was sent
    grpc::Status end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  };

  static constexpr int kItems = 10;

  void Add(const Script& script) { scripts_.push_back(script); }
  std::vector<int64_t> cursors() {
    absl::MutexLock lock(&mu_);
    return cursors_;
  }

  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    Script script;
    {
      absl::MutexLock lock(&mu_);
      if (cursors_.size() < scripts_.size()) script = scripts_[cursors_.size()];
      cursors_.push_back(request->after_sequence());
    }
    v1::WatchJobResponse response;
    int64_t sequence = std::max<int64_t>(0, request->after_sequence() - script.overlap);
    for (int sent = 0; sent < script.items && sequence < kItems; ++sent) {
      if (++sequence == script.skip) continue;
      response.mutable_item()->set_sequence(sequence);
      writer->Write(response);
    }
    if (script.lying_heartbeat) {
      response.mutable_heartbeat()->set_sequence(kItems);
      writer->Write(response);
    }
    while (script.hang && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    if (sequence < kItems || script.lying_heartbeat) return script.end;
    response.mutable_end()->mutable_job()->set_state(v1::SUCCEEDED);
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status SubmitJob(grpc::ServerContext* context, const v1::SubmitJobRequest* request,
                         v1::Job* job) override {
    absl::MutexLock lock(&mu_);
    request_ids_.push_back(request->request_id());
    const auto token = context->client_metadata().find("authorization");
    job->set_creator(token == context->client_metadata().end()
                         ? ""
                         : std::string(token->second.data(), token->second.size()));
    // As gRPC answers while it shuts a server down, and as the server answers.
    if (request_ids_.size() < 2) return grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED");
    if (request_ids_.size() < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
    return grpc::Status::OK;
  }

  std::vector<std::string> request_ids() {
    absl::MutexLock lock(&mu_);
    return request_ids_;
  }

 private:
  absl::Mutex mu_;
  std::vector<Script> scripts_;
  std::vector<int64_t> cursors_;
  std::vector<std::string> request_ids_;
};

// A log of 100 bytes that is cut after 30, whose first 50 are rotated away then.
class FakeLogs : public v1::LogService::Service {
 public:
  grpc::Status TailLogs(grpc::ServerContext*, const v1::TailLogsRequest* request,
                        grpc::ServerWriter<v1::TailLogsResponse>* writer) override {
    ++calls_;
    v1::TailLogsResponse response;
    response.set_attempt(2);
    if (calls_ == 1) {
      response.set_data(std::string(30, 'a'));
      writer->Write(response);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "node away");
    }
    EXPECT_EQ(request->attempt(), 2);
    if (calls_ == 2) {
      response.set_offset(20);
      response.set_data(std::string(20, 'b'));
      writer->Write(response);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "node away");
    }
    response.set_offset(50);
    response.set_data(std::string(5, 'c'));
    writer->Write(response);
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> calls_ = 0;
};

// A server that says of itself that it has lost its store.
class AwayJobs : public v1::JobService::Service {
 public:
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>*) override {
    ++calls_;
    return {grpc::UNAVAILABLE, "has not reached its store"};
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::Job*) override {
    ++calls_;
    return {grpc::UNAVAILABLE, "has not reached its store"};
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_ = 0;
};

class JobWatcherTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&logs_);
    server_ = builder.BuildAndStart();
    ClientOptions options;
    options.server = absl::StrCat("127.0.0.1:", port);
    options.token = "abc";
    client_ = std::make_unique<Client>(options);
  }
  void TearDown() override { server_->Shutdown(std::chrono::system_clock::now()); }

  absl::StatusOr<v1::Job> Watch(WatchOptions options = {}) {
    JobWatcher watcher(*client_, "projects/default/jobs/a", options);
    JobWatcher::Handlers handlers;
    handlers.on_item = [this](const v1::FeedItem& item) {
      seen_.push_back(item.sequence());
      if (stop_at_ == item.sequence()) stop_.Request();
      return true;
    };
    handlers.on_lost = [this](const absl::Status&) { ++lost_; };
    handlers.on_back = [this] { ++back_; };
    return watcher.Run(handlers, stop_);
  }

  void ExpectEveryItemOnce() { EXPECT_THAT(seen_, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)); }

  FakeJobs jobs_;
  FakeLogs logs_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
  Stop stop_;
  std::vector<int64_t> seen_;
  int64_t stop_at_ = -1;
  int lost_ = 0;
  int back_ = 0;
};

TEST_F(JobWatcherTest, MovesToAnotherServerAndMissesNothing) {
  AwayJobs away;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&away);
  const std::unique_ptr<grpc::Server> other = builder.BuildAndStart();
  ClientOptions options;
  options.server =
      absl::StrCat("127.0.0.1:1,127.0.0.1:", port, ",", client_->server());  // dead, away, good
  options.token = "abc";
  client_ = std::make_unique<Client>(options);
  const absl::StatusOr<v1::Job> end = Watch();
  ASSERT_TRUE(end.ok()) << end.status();
  ExpectEveryItemOnce();
  EXPECT_EQ(away.calls(), 1) << "whoever moved stays";
  other->Shutdown(std::chrono::system_clock::now());
}

TEST_F(JobWatcherTest, CallsAskEveryServerBeforeTheyGiveUp) {
  AwayJobs away;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&away);
  const std::unique_ptr<grpc::Server> other = builder.BuildAndStart();
  ClientOptions options;
  options.server = absl::StrCat("127.0.0.1:1,127.0.0.1:", port);
  options.patience = absl::ZeroDuration();
  const absl::Status status = Client(options).GetJob({}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(away.calls(), 1);
  options.server = "127.0.0.1:1,127.0.0.1:0";
  EXPECT_TRUE(absl::IsInvalidArgument(Client(options).GetJob({}).status()));
  other->Shutdown(std::chrono::system_clock::now());
}

TEST_F(JobWatcherTest, ReadsAFeedToItsEnd) {
  const absl::StatusOr<v1::Job> end = Watch();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), v1::SUCCEEDED);
  ExpectEveryItemOnce();
  EXPECT_EQ(lost_, 0);
}

TEST_F(JobWatcherTest, ResumesAtItsCursorAfterEveryBreak) {
  jobs_.Add({.items = 3});
  jobs_.Add({.items = 0});
  jobs_.Add({.items = 4});
  ASSERT_TRUE(Watch().ok());
  ExpectEveryItemOnce();
  EXPECT_THAT(jobs_.cursors(), ElementsAre(0, 3, 3, 7));
  EXPECT_EQ(lost_, 2);  // the stream that never spoke belongs to the first loss
  EXPECT_EQ(back_, 2);
}

TEST_F(JobWatcherTest, DropsWhatIsSentAgainAroundAReconnect) {
  jobs_.Add({.items = 5});
  jobs_.Add({.overlap = 3});
  ASSERT_TRUE(Watch().ok());
  ExpectEveryItemOnce();
}

TEST_F(JobWatcherTest, AsksAgainWhenAnItemIsSkipped) {
  jobs_.Add({.skip = 4});
  ASSERT_TRUE(Watch().ok());
  ExpectEveryItemOnce();
  EXPECT_THAT(jobs_.cursors(), ElementsAre(0, 3));
}

TEST_F(JobWatcherTest, AsksAgainWhenAHeartbeatRunsAhead) {
  jobs_.Add({.items = 4, .lying_heartbeat = true});
  ASSERT_TRUE(Watch().ok());
  ExpectEveryItemOnce();
}

TEST_F(JobWatcherTest, GivesUpOnAServerThatKeepsSkipping) {
  for (int i = 0; i < 5; ++i) jobs_.Add({.skip = 4});
  EXPECT_EQ(Watch().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(seen_, ElementsAre(1, 2, 3));
}

TEST_F(JobWatcherTest, AStreamWithoutAnEndIsNotTakenForOne) {
  jobs_.Add({.items = 6, .end = grpc::Status::OK});
  ASSERT_TRUE(Watch().ok());
  ExpectEveryItemOnce();
}

// As gRPC ends a stream that reaches a server just as it shuts down.
TEST_F(JobWatcherTest, GoesOnAfterAServerThatShutsDown) {
  jobs_.Add({.items = 0, .end = grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED")});
  jobs_.Add({.items = 4, .end = grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED")});
  ASSERT_TRUE(Watch().ok());
  ExpectEveryItemOnce();
}

TEST_F(JobWatcherTest, ReplacesAStreamThatWentSilent) {
  jobs_.Add({.items = 2, .hang = true});
  ASSERT_TRUE(Watch({.silence = absl::Milliseconds(100)}).ok());
  ExpectEveryItemOnce();
}

TEST_F(JobWatcherTest, StartsAfterACursor) {
  ASSERT_TRUE(Watch({.after_sequence = 8}).ok());
  EXPECT_THAT(seen_, ElementsAre(9, 10));
}

TEST_F(JobWatcherTest, ReturnsTheServersRefusalAtOnce) {
  jobs_.Add({.items = 0, .end = grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job")});
  const absl::Status status = Watch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no such job");
  EXPECT_EQ(jobs_.cursors().size(), 1u);
}

TEST_F(JobWatcherTest, GivesUpWhenTheServerStaysAway) {
  for (int i = 0; i < 100; ++i) jobs_.Add({.items = 0});
  EXPECT_EQ(Watch({.patience = absl::Milliseconds(200)}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(JobWatcherTest, AStopEndsASilentStreamAtOnce) {
  jobs_.Add({.items = 2, .hang = true});
  stop_at_ = 2;
  const absl::Time start = absl::Now();
  EXPECT_EQ(Watch().status().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(JobWatcherTest, ASubmissionIsRepeatedUnderOneRequestId) {
  const absl::StatusOr<v1::Job> job = client_->SubmitJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->creator(), "Bearer abc");
  const std::vector<std::string> ids = jobs_.request_ids();
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[0].size(), 32u);
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
}

TEST_F(JobWatcherTest, NobodyThereIsUnavailableWithinPatience) {
  ClientOptions options;
  options.server = "127.0.0.1:1";
  options.patience = absl::Milliseconds(200);
  Client nobody(options);
  const absl::Time start = absl::Now();
  EXPECT_EQ(nobody.GetServerInfo().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(JobWatcherTest, ALogIsFollowedWithEveryByteOnceAndGapsReported) {
  v1::TailLogsRequest request;
  request.set_job("projects/default/jobs/a");
  LogFollower follower(*client_, request, absl::Minutes(1));
  std::string text;
  int64_t missing = 0;
  const absl::Status status =
      follower.Run({.on_data = [&](const std::string& data) { text += data; },
                    .on_missing = [&](int64_t bytes) { missing += bytes; }},
                   stop_);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, std::string(30, 'a') + std::string(10, 'b') + std::string(5, 'c'));
  EXPECT_EQ(missing, 10);
  EXPECT_EQ(follower.attempt(), 2);
}

}  // namespace
}  // namespace trainyard
