#include "executor/worker/standby.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "executor/run/orders.h"
#include "executor/run/run_directory.h"
#include "executor/worker/become_user.h"
#include "executor/worker/confine.h"
#include "executor/worker/open_device.h"
#include "executor/worker/stop_signal.h"
#include "executor/worker/warm_up.h"

namespace trainyard::worker {
namespace {

constexpr int kNotWarm = 1;  // exit code; an agent that wants a worker here starts another

// Waits until stdin can be read; false when a stop was asked for.
bool AwaitInput() {
  pollfd awaited[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                      {.fd = StopWishDescriptor(), .events = POLLIN}};
  while (!StopWish()) {
    if (poll(awaited, std::size(awaited), -1) > 0 && awaited[0].revents != 0) return !StopWish();
  }
  return false;
}

}  // namespace

int RunStandby(const RankOptions& options, bool open_device, bool confined) {
  std::unique_ptr<kernels::Device> device;
  {
    absl::StatusOr<std::unique_ptr<kernels::Device>> opened =
        OpenDevice(open_device ? options.device : "cpu", options.threads);
    const absl::Status warm = opened.ok() ? WarmUp(**opened) : opened.status();
    if (!warm.ok()) {
      // A GPU that cannot be opened, or failed, is of no use to this process later either.
      spdlog::error("{}", std::string(warm.message()));
      if (open_device) return kNotWarm;
    } else if (open_device) {
      device = *std::move(opened);
    }
  }
  if (device) spdlog::info("waiting, warm, on {}", device->Description());
  run::OrdersReader reader;
  while (!reader.done()) {
    if (!AwaitInput() || !reader.Read(STDIN_FILENO).ok()) return run::kExitDone;
  }
  const absl::StatusOr<run::Orders> orders = run::ParseOrders(reader.line());
  if (!orders.ok()) {
    spdlog::error("stdin: {}", std::string(orders.status().message()));
    return run::kExitUsage;
  }
  TakeEnvironment(*orders);
  absl::Status harmless = orders->user ? BecomeUser(*orders->user) : absl::OkStatus();
  if (harmless.ok() && confined) harmless = ConfineToOneProcess();
  if (!harmless.ok()) {
    spdlog::error("{}", std::string(harmless.message()));
    return run::kExitInternal;
  }
  if (orders->device != options.device || orders->threads != options.threads) device.reset();
  return RunRank({.run_directory = orders->run_directory,
                  .device = orders->device,
                  .threads = orders->threads,
                  .kept_state_room = orders->kept_state_room},
                 std::move(device), reader.TakeState());
}

}  // namespace trainyard::worker
