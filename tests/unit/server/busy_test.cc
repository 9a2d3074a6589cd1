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

}  // namespace
}  // namespace trainyard
