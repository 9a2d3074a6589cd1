#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace trainyard {

// Hints that something changed; a hint does not say what. A hint may be lost or come twice: every
// listener also polls. Thread-safe. Hints are sent outside the transactions that make the changes,
// because a NOTIFY inside one serializes commits, and are coalesced.
class Wakeups {
 public:
  virtual ~Wakeups() = default;

  // Topics: "queue" (scheduler), "node:{name}" (desired set of a node), "fleet" (desired sets of
  // all nodes: it is not known which changed, or hints were lost), "job:{uid}" (feed of a job),
  // "job:" (feeds of all jobs: hints were lost).
  virtual void Wake(const std::string& topic) = 0;

  // Like Wake, but only the listeners of other processes need to hear it: those of this process
  // were told already.
  virtual void WakeOthers(const std::string& topic) { Wake(topic); }

  // `wake` is called on the source's own thread, must not block, and may be called for no reason.
  // Returns an id; after Unsubscribe(id) returns, `wake` is not running and never runs again.
  virtual int64_t Subscribe(std::function<void(const std::string& topic)> wake) = 0;
  virtual void Unsubscribe(int64_t id) = 0;
};

}  // namespace trainyard
