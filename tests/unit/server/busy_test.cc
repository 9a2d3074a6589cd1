// More calls than the server takes at once.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "clients/cpp/client.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

// More callers than the server holds: those refused are told when to come again, and our own client
// does.
TEST(Busy, CallsBeyondTheQueueAreRefusedWithADelayThatTheClientObeys) {
  ServerOptions options = Rig::FastOptions();
  options.calls = {.threads = 1, .most_waiting_bytes = 2, .least_bytes = 1};
  Rig rig(options);
  std::atomic<int> refused{0};
  const auto hammer = [&](const std::function<void()>& call) {
    std::vector<std::thread> callers;
    for (int t = 0; t < 16; ++t) {
      callers.emplace_back([&] {
        for (int i = 0; i < 20; ++i) call();
      });
    }
    for (std::thread& caller : callers) caller.join();
  };
  const absl::Time bound = absl::Now() + kPatience;
  while (refused == 0 && absl::Now() < bound) {
    hammer([&] {
      v1::ServerInfo info;
      const grpc::Status status = rig.info().GetServerInfo(Rig::Context().get(), {}, &info);
      if (status.ok()) return;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      google::rpc::Status details;
      google::rpc::RetryInfo retry;
      ASSERT_TRUE(details.ParseFromString(status.error_details()));
      ASSERT_EQ(details.details_size(), 1);
      ASSERT_TRUE(details.details(0).UnpackTo(&retry));
      EXPECT_GT(retry.retry_delay().nanos(), 0);
      ++refused;
    });
  }
  EXPECT_GT(refused, 0);
  Client client({.server = "127.0.0.1:" + std::to_string(rig.server().port()),
                 .token = kAdminToken,
                 .patience_when_busy = kPatience});
  hammer([&] {
    const auto info = client.GetServerInfo();
    EXPECT_TRUE(info.ok()) << info.status();
  });
}

absl::Duration RetryDelayIn(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::RetryInfo retry;
  const bool has = details.ParseFromString(status.error_details()) && details.details_size() == 1 &&
                   details.details(0).UnpackTo(&retry);
  return has ? absl::Seconds(retry.retry_delay().seconds()) +
                   absl::Nanoseconds(retry.retry_delay().nanos())
             : absl::ZeroDuration();
}

// Whoever has submitted enough for a while is told when it may submit again, and our own client
// does so then. Others are not held up.
TEST(Busy, SubmissionsBeyondACallersRateAreRefusedWithADelayThatTheClientObeys) {
  ServerOptions options = Rig::FastOptions();
  options.limits = {.submissions_per_minute = 60};
  Rig rig(options);
  v1::BatchSubmitJobsRequest batch;
  batch.set_parent("projects/default");
  for (int i = 0; i < 61; ++i) {
    *batch.add_requests()->mutable_job() = SmallJob("b" + std::to_string(i));
  }
  v1::BatchSubmitJobsResponse taken;
  ASSERT_TRUE(rig.jobs().BatchSubmitJobs(Rig::Context().get(), batch, &taken).ok());
  v1::SubmitJobRequest one;
  one.set_parent("projects/default");
  *one.mutable_job() = SmallJob("one");
  v1::Job job;
  const grpc::Status refused = rig.jobs().SubmitJob(Rig::Context().get(), one, &job);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GT(RetryDelayIn(refused), absl::ZeroDuration()) << refused.error_message();
  one.set_validate_only(true);
  EXPECT_TRUE(rig.jobs().SubmitJob(Rig::Context().get(), one, &job).ok()) << "a check is none";
  one.set_validate_only(false);
  Client client({.server = "127.0.0.1:" + std::to_string(rig.server().port()),
                 .token = kAdminToken,
                 .patience_when_busy = kPatience});
  const auto submitted = client.SubmitJob(one);
  EXPECT_TRUE(submitted.ok()) << submitted.status();
}

// A watch and a log more than a caller may have open.
TEST(Busy, StreamsBeyondACallersNumberAreRefused) {
  ServerOptions options = Rig::FastOptions();
  options.limits = {.most_streams = 1};
  Rig rig(options);
  const v1::Job job = rig.Submit(SmallJob("job"));
  v1::WatchJobRequest request;
  request.set_name(job.name());
  const auto first_context = Rig::Context(), second_context = Rig::Context();
  const auto first = rig.jobs().WatchJob(first_context.get(), request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(first->Read(&response));
  const auto second = rig.jobs().WatchJob(second_context.get(), request);
  EXPECT_FALSE(second->Read(&response));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  first_context->TryCancel();
  while (first->Read(&response)) continue;
  first->Finish();
  // Once the server has noticed.
  grpc::StatusCode code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  for (const absl::Time bound = absl::Now() + kPatience;
       code == grpc::StatusCode::RESOURCE_EXHAUSTED && absl::Now() < bound;) {
    const auto context = Rig::Context();
    const auto again = rig.jobs().WatchJob(context.get(), request);
    code = again->Read(&response) ? grpc::StatusCode::OK : again->Finish().error_code();
    if (code != grpc::StatusCode::OK) continue;
    context->TryCancel();
    while (again->Read(&response)) continue;
    again->Finish();
  }
  EXPECT_EQ(code, grpc::StatusCode::OK);
}

}  // namespace
}  // namespace trainyard
