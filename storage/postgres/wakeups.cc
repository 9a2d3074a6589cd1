#include "storage/postgres/wakeups.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <optional>
#include <pqxx/pqxx>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_split.h"
#include "storage/base/clock.h"
#include "storage/base/ids.h"
#include "storage/base/retry_pause.h"
#include "storage/base/status.h"
#include "storage/postgres/connection.h"
#include "storage/postgres/fault.h"
#include "storage/postgres/params.h"

namespace trainyard::postgres {
namespace {

constexpr char kChannel[] = "trainyard";
constexpr absl::Duration kFirstReconnect = absl::Milliseconds(10);
constexpr absl::Duration kLongestReconnect = absl::Milliseconds(500);
// A connection that lasted longer was good: the next failure is logged again.
constexpr absl::Duration kSettled = absl::Seconds(1);
constexpr int kIdleCheckMs = 5000;
// The shortest time between two NOTIFYs, so that topics which come meanwhile are sent together:
// each takes a round trip of one connection and an echo on the other.
constexpr absl::Duration kNotifyEvery = absl::Milliseconds(5);
constexpr absl::Duration kLongestAnswer = absl::Seconds(5);  // then the connection is given up

// Payloads are "{id of the sending process} {topic}".
class Receiver : public pqxx::notification_receiver {
 public:
  Receiver(pqxx::connection_base& connection, const std::string& own_id, LocalWakeups& local)
      : pqxx::notification_receiver(connection, kChannel), own_id_(own_id), local_(local) {}

  void operator()(const std::string& payload, int /*backend*/) override {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(payload, absl::MaxSplits(' ', 1));
    if (parts.first != own_id_) local_.Wake(parts.second);
  }

 private:
  const std::string& own_id_;
  LocalWakeups& local_;
};

void Notify(Connection& connection, const std::string& own_id,
            const std::set<std::string>& topics) {
  connection.Prepare("Notify", "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload");
  std::vector<std::string> payloads;
  for (const std::string& topic : topics) payloads.push_back(own_id + " " + topic);
  const Params params(kChannel, payloads);
  const std::vector<const char*> values = params.Pointers();
  pqxx::nontransaction alone(connection.pq());
  alone.exec_prepared("Notify", pqxx::prepare::make_dynamic_params(values));
}

}  // namespace

PostgresWakeups::PostgresWakeups(const std::string& conninfo)
    : hosts_(ConninfoOfEachHost(conninfo)),
      own_id_(RandomHex(8)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TY_CHECK(wake_fd_.valid(), "eventfd");
  thread_ = std::thread([this] { Loop(); });
}

PostgresWakeups::~PostgresWakeups() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(wake_fd_.get(), 1);
  thread_.join();
}

void PostgresWakeups::Wake(const std::string& topic) {
  local_.Wake(topic);
  WakeOthers(topic);
}

void PostgresWakeups::WakeOthers(const std::string& topic) {
  {
    absl::MutexLock lock(&mu_);
    if (!pending_.insert(topic).second) return;  // the thread was told already
  }
  eventfd_write(wake_fd_.get(), 1);
}

int64_t PostgresWakeups::Subscribe(std::function<void(const std::string& topic)> wake) {
  return local_.Subscribe(std::move(wake));
}

void PostgresWakeups::Unsubscribe(int64_t id) { local_.Unsubscribe(id); }

bool PostgresWakeups::stopping() {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

std::set<std::string> PostgresWakeups::TakePending() {
  absl::MutexLock lock(&mu_);
  return std::exchange(pending_, {});
}

void PostgresWakeups::Loop() {
  bool told = false;
  RetryPause pause(kFirstReconnect, kLongestReconnect);
  for (size_t tries = 0; !stopping(); ++tries) {
    absl::Duration connected = absl::InfiniteDuration();  // since boot; infinite: not yet
    try {
      Serve(hosts_[tries % hosts_.size()], connected);
    } catch (...) {
      if (SystemClock().SinceBoot() - connected > kSettled) {
        told = false;
        pause.Reset();
      }
      const absl::Status status = FaultOfCurrentException("wake-ups").status;
      if (!told) spdlog::warn("{}; trying again", std::string(status.message()));
      told = true;
    }
    if (stopping()) return;
    TakePending();                       // hints may be lost; those of now would be old by then
    pollfd woken{wake_fd_.get(), 0, 0};  // only to sleep: a hint is no reason to hurry
    poll(&woken, 1, static_cast<int>(absl::ToInt64Milliseconds(pause.Next())));
  }
}

void PostgresWakeups::Serve(const std::string& conninfo, absl::Duration& connected) {
  Connection listening(conninfo);
  Connection notifying(conninfo);
  const auto bounded = [this](const Connection& connection) {
    return CutOffs::Guard(cut_offs_, connection.socket(),
                          SystemClock().SinceBoot() + kLongestAnswer);
  };
  std::optional<CutOffs::Guard> at_end;  // bounds the UNLISTEN in the destructor of the receiver
  std::optional<Receiver> receiver;
  const absl::Cleanup bound_the_end = [&] {
    at_end.emplace(cut_offs_, listening.socket(), SystemClock().SinceBoot() + kLongestAnswer);
  };
  {
    const auto guard = bounded(listening);
    receiver.emplace(listening.pq(), own_id_, local_);
    listening.pq().get_notifs();
  }
  {
    const auto guard = bounded(notifying);
    // A NOTIFY commits a transaction. Hints may be lost, so it need not wait for the disk.
    pqxx::nontransaction(notifying.pq()).exec("SET synchronous_commit = off");
  }
  connected = SystemClock().SinceBoot();
  // What others sent while nobody listened is lost: every listener looks once.
  local_.Wake("queue");
  local_.Wake("fleet");
  local_.Wake("job:");
  absl::Duration notified = -absl::InfiniteDuration();
  while (!stopping()) {
    const int64_t rest_ms = absl::ToInt64Milliseconds(
        absl::Ceil(notified + kNotifyEvery - SystemClock().SinceBoot(), absl::Milliseconds(1)));
    const bool rests = rest_ms > 0;
    pollfd fds[] = {{rests ? -1 : wake_fd_.get(), POLLIN, 0}, {listening.pq().sock(), POLLIN, 0}};
    const int ready = poll(fds, 2, rests ? static_cast<int>(rest_ms) : kIdleCheckMs);
    if (!rests) {
      eventfd_t count = 0;
      eventfd_read(wake_fd_.get(), &count);
      const std::set<std::string> topics = TakePending();
      if (!topics.empty()) {
        const auto guard = bounded(notifying);
        Notify(notifying, own_id_, topics);
        notified = SystemClock().SinceBoot();
      }
    }
    if (ready == 0 && !rests) {  // a connection that died in silence shows now
      const auto guard = bounded(listening);
      pqxx::nontransaction(listening.pq()).exec("SELECT");
    }
    listening.pq().get_notifs();
    if (!listening.pq().is_open())
      throw pqxx::broken_connection("the listening connection is gone");
  }
}

}  // namespace trainyard::postgres
