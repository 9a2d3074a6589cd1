#pragma once

#include <pqxx/pqxx>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"

namespace trainyard::postgres {

// How long it may take to connect to one host and to be greeted by it.
inline constexpr absl::Duration kConnectLimit = absl::Seconds(5);

// How libpqxx connects: like PQconnectdb, but bounded in time also when the server, its kernel
// alive, says nothing.
class ConnectWithin : public pqxx::connectionpolicy {
 public:
  using connectionpolicy::connectionpolicy;
  handle do_startconnect(handle connection) override;

  // The deadline for what this thread connects next.
  static thread_local absl::Duration deadline;  // on Clock::SinceBoot
};

// A connection that stays broken once it broke: libpqxx 6 would reconnect by itself, in the middle
// of a transaction, and lose what was subscribed. Throws what libpqxx throws.
class Connection {
 public:
  // pqxx::broken_connection when it is not greeted before `deadline`.
  explicit Connection(const std::string& conninfo,
                      absl::Duration deadline = SystemClock().SinceBoot() + kConnectLimit);

  pqxx::connection_base& pq() { return pq_; }

  // A duplicate of its socket, which stays open as long as this lives: for CutOffs.
  int socket() const { return socket_.get(); }

  // Makes `name` known to exec_prepared.
  void Prepare(const char* name, const char* text);

 private:
  struct Deadline {
    explicit Deadline(absl::Duration deadline) { ConnectWithin::deadline = deadline; }
  };

  Deadline deadline_;
  pqxx::basic_connection_base<ConnectWithin> pq_;
  pqxx::quiet_errorhandler quiet_{pq_};  // what it would print comes as an exception as well
  FileDescriptor socket_;
  std::set<std::string> prepared_;
};

// One conninfo for each host that `conninfo` names: each gets a bound of its own, so that a frozen
// first one does not use up the time of the others.
std::vector<std::string> ConninfoOfEachHost(const std::string& conninfo);

}  // namespace trainyard::postgres
