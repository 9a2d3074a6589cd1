#pragma once

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/file.h"
#include "storage/local_wakeups.h"
#include "storage/postgres/cut_off.h"

namespace trainyard::postgres {

// Wake-ups between all processes that use one database. Listeners of this process are called at
// once, by Wake itself; those of other processes are reached by LISTEN and NOTIFY over two
// connections of a thread of its own. The thread sends a topic once, however often it was woken
// since the last NOTIFY, and connects again by itself when the database was away.
class PostgresWakeups : public Wakeups {
 public:
  explicit PostgresWakeups(const std::string& conninfo);
  ~PostgresWakeups() override;

  void Wake(const std::string& topic) override;
  void WakeOthers(const std::string& topic) override;  // the NOTIFY alone
  int64_t Subscribe(std::function<void(const std::string& topic)> wake) override;
  void Unsubscribe(int64_t id) override;

 private:
  void Loop();
  // Runs until a connection breaks (throws) or this object is destroyed.
  // Sets `connected`, since boot, once both connections work.
  void Serve(const std::string& conninfo, absl::Duration& connected);
  std::set<std::string> TakePending();
  bool stopping();

  const std::vector<std::string> hosts_;  // a conninfo each
  const std::string own_id_;              // marks our own notifications, which need no echo
  CutOffs cut_offs_;
  FileDescriptor wake_fd_;  // eventfd: something is pending, or the end
  LocalWakeups local_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::string> pending_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace trainyard::postgres
