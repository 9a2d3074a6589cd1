#include "executor/worker/standby.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "executor/run/run_directory.h"
#include "executor/worker/open_device.h"
#include "executor/worker/stop_signal.h"
#include "executor/worker/warm_up.h"
#include "storage/base/status.h"

namespace trainyard::worker {
namespace {

constexpr size_t kLongestLine = 1 << 16;
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

// One line from stdin; nullopt when there is none, or a stop was asked for.
std::optional<std::string> ReadLine() {
  std::string line;
  char c = 0;
  while (line.size() < kLongestLine) {
    if (!AwaitInput()) return std::nullopt;
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n <= 0) return std::nullopt;
    if (c == '\n') return line;
    line += c;
  }
  return line;
}

}  // namespace

absl::StatusOr<RankOptions> ParseStandbyLine(const std::string& line) {
  try {
    const nlohmann::json json = nlohmann::json::parse(line);
    return RankOptions{.run_directory = json.at("run_dir").get<std::string>(),
                       .device = json.at("device").get<std::string>(),
                       .threads = json.at("threads").get<int>(),
                       .kept_state = json.value("kept_state", ""),
                       .kept_state_room = json.value("kept_state_room", int64_t{0})};
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("'", line, "': ", e.what()));
  }
}

int RunStandby(const RankOptions& options, bool open_device) {
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
  const std::optional<std::string> line = ReadLine();
  if (!line) return run::kExitDone;
  const absl::StatusOr<RankOptions> asked = ParseStandbyLine(*line);
  if (!asked.ok()) {
    spdlog::error("stdin: {}", std::string(asked.status().message()));
    return run::kExitUsage;
  }
  if (asked->device != options.device || asked->threads != options.threads) device.reset();
  return RunRank(*asked, std::move(device));
}

}  // namespace trainyard::worker
