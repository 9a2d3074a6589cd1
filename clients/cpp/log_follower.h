#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "clients/cpp/client.h"

namespace trainyard {

// Reads the log of one rank over any number of lost connections: every byte once, in order. Bytes
// that were rotated away meanwhile are reported, never skipped silently. Used by one thread.
class LogFollower {
 public:
  struct Handlers {
    std::function<void(const std::string& data)> on_data;
    std::function<void(int64_t bytes)> on_missing;  // how many were rotated away
  };

  LogFollower(Client& client, v1::TailLogsRequest request, absl::Duration patience)
      : client_(client), request_(std::move(request)), patience_(patience) {}

  // Reads to the end of the log (with `follow`, until the rank exited): OK. kCancelled after a
  // stop.
  absl::Status Run(const Handlers& handlers, Stop& stop);

  // The attempt whose log it is; 0 before anything was read.
  int64_t attempt() const { return request_.attempt(); }

 private:
  void Take(const v1::TailLogsResponse& response, const Handlers& handlers);

  Client& client_;
  v1::TailLogsRequest request_;
  const absl::Duration patience_;
  bool started_ = false;
  int64_t next_ = 0;  // offset of the first byte that was not handed out
};

}  // namespace trainyard
