#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/cpp/client.h"

namespace trainyard {

struct WatchOptions {
  int64_t after_sequence = 0;  // 0: from the beginning
  // Heartbeats come every 5 s; a stream without one for this long is replaced.
  absl::Duration silence = absl::Seconds(15);
  // How long in a row the server may be away before Run gives up with kUnavailable.
  absl::Duration patience = absl::Minutes(10);
};

// Follows the feed of one job over any number of lost connections: every item once, in order,
// without gaps. Used by one thread.
class JobWatcher {
 public:
  struct Handlers {
    std::function<bool(const v1::FeedItem&)> on_item;  // false ends Run with kCancelled
    // Called when the connection is lost, and when it is back. Both may be empty.
    std::function<void(const absl::Status&)> on_lost;
    std::function<void()> on_back;
  };

  JobWatcher(Client& client, std::string name, WatchOptions options)
      : client_(client),
        name_(std::move(name)),
        options_(options),
        cursor_(options.after_sequence) {}

  // Returns the job as it ended. kCancelled: a stop was requested, or on_item said so. kDataLoss:
  // the server keeps skipping items. Any other code is the server's answer.
  absl::StatusOr<v1::Job> Run(const Handlers& handlers, Stop& stop);

 private:
  enum class Outcome { kEnded, kRefused, kLost, kGap };

  // One stream, until it breaks.
  Outcome RunOnce(const Handlers& handlers, Stop& stop, v1::Job& end, absl::Status& status);

  Client& client_;
  const std::string name_;
  const WatchOptions options_;
  int64_t cursor_ = 0;  // sequence of the newest item that was handed out
  bool heard_ = false;  // whether the newest stream delivered anything
  bool lost_ = false;
};

}  // namespace trainyard
