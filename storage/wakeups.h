#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace trainyard {

// Hints that something changed; never carries what. A hint may be lost or come twice: every
// listener also polls. Thread-safe. Sent outside the transactions that change (a NOTIFY inside one
// serializes commits), coalesced.
class Wakeups {
 public:
  virtual ~Wakeups() = default;

  // Topics: "queue" (scheduler), "node:{name}" (desired set of a node), "fleet" (those of all
  // nodes: it is not known whose, or hints were lost), "job:{uid}" (feed of a job), "job:" (feeds
  // of all jobs: hints were lost).
  virtual void Wake(const std::string& topic) = 0;

  // As Wake, for what the listeners of this process were told already: it is enough if those of
  // other processes hear it.
  virtual void WakeOthers(const std::string& topic) { Wake(topic); }

  // `wake` is called on the source's own thread, must not block, and may be called for no reason.
  // Returns an id; after Unsubscribe(id) returns, `wake` is not running and never runs again.
  virtual int64_t Subscribe(std::function<void(const std::string& topic)> wake) = 0;
  virtual void Unsubscribe(int64_t id) = 0;
};

}  // namespace trainyard
