#pragma once

#include <memory>
#include <pqxx/pqxx>
#include <set>
#include <string>

namespace trainyard::postgres {

// A connection that stays broken once it broke: libpqxx 6 would reconnect by itself, in the middle
// of a transaction, and lose what was subscribed. Throws what libpqxx throws.
class Connection {
 public:
  explicit Connection(const std::string& conninfo);

  pqxx::connection& pq() { return pq_; }

  // Makes `name` known to exec_prepared.
  void Prepare(const char* name, const char* text);

 private:
  pqxx::connection pq_;
  pqxx::quiet_errorhandler quiet_{pq_};  // what it has to say comes as an exception as well
  std::set<std::string> prepared_;
};

}  // namespace trainyard::postgres
