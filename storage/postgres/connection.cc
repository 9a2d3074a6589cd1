#include "storage/postgres/connection.h"

#include <fcntl.h>
#include <libpq-fe.h>
#include <poll.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/postgres/database.h"

namespace trainyard::postgres {
namespace {

// Goes on with the connection until it stands (OK), failed, or the time is over.
PostgresPollingStatusType PollUntil(PGconn* connection, absl::Duration deadline) {
  PostgresPollingStatusType state = PGRES_POLLING_WRITING;  // what PQconnectStart leaves
  while (state != PGRES_POLLING_OK && state != PGRES_POLLING_FAILED) {
    const absl::Duration left = deadline - SystemClock().SinceBoot();
    if (left <= absl::ZeroDuration()) break;
    pollfd wanted{PQsocket(connection),
                  static_cast<short>(state == PGRES_POLLING_READING ? POLLIN : POLLOUT), 0};
    const int ready =
        poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1))));
    if (ready > 0) state = PQconnectPoll(connection);
  }
  return state;
}

}  // namespace

thread_local absl::Duration ConnectWithin::deadline = absl::InfiniteDuration();

ConnectWithin::handle ConnectWithin::do_startconnect(handle connection) {
  if (connection != nullptr) return connection;
  connection = PQconnectStart(options().c_str());
  if (connection == nullptr) throw std::bad_alloc();
  PostgresPollingStatusType state = PGRES_POLLING_FAILED;
  if (PQstatus(connection) != CONNECTION_BAD) state = PollUntil(connection, deadline);
  if (state == PGRES_POLLING_OK) return connection;
  const std::string why = state == PGRES_POLLING_FAILED
                              ? PQerrorMessage(connection)
                              : "the server accepts connections but does not answer";
  PQfinish(connection);
  throw pqxx::broken_connection(why);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
Connection::Connection(const std::string& conninfo, absl::Duration deadline)
    : deadline_(deadline), pq_(conninfo), socket_(fcntl(pq_.sock(), F_DUPFD_CLOEXEC, 0)) {
  pq_.inhibit_reactivation(true);
}
#pragma GCC diagnostic pop

void Connection::Prepare(const char* name, const char* text) {
  if (prepared_.insert(name).second) pq_.prepare(name, text);
}

std::vector<std::string> ConninfoOfEachHost(const std::string& conninfo) {
  PQconninfoOption* parsed = PQconninfoParse(conninfo.c_str(), nullptr);
  if (parsed == nullptr) return {conninfo};
  std::map<std::string, std::string> words;
  for (const PQconninfoOption* option = parsed; option->keyword != nullptr; ++option) {
    if (option->val != nullptr) words[option->keyword] = option->val;
  }
  PQconninfoFree(parsed);
  // libpq counts hosts by hostaddr where there is one; ports are one for all or one each.
  const std::string& counted = words.count("hostaddr") > 0 ? words["hostaddr"] : words["host"];
  const size_t hosts = std::vector<std::string>(absl::StrSplit(counted, ',')).size();
  std::vector<std::string> each;
  for (size_t i = 0; i < hosts; ++i) {
    std::map<std::string, std::string> one = words;
    for (const char* list : {"host", "hostaddr", "port"}) {
      const auto found = one.find(list);
      if (found == one.end()) continue;
      const std::vector<std::string> parts = absl::StrSplit(found->second, ',');
      if (parts.size() == hosts) found->second = parts[i];
    }
    each.push_back(MakeConninfo(one));
  }
  return each;
}

}  // namespace trainyard::postgres
