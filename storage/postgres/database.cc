#include "storage/postgres/database.h"

#include <libpq-fe.h>

#include <algorithm>
#include <map>
#include <pqxx/pqxx>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "storage/postgres/connection.h"
#include "storage/postgres/fault.h"

namespace trainyard::postgres {
namespace {

constexpr int kTries = 5;
constexpr absl::Duration kPoolWait = absl::Seconds(10);

template <typename Pq>
class OpenTransaction : public Transaction {
 public:
  explicit OpenTransaction(Connection& connection)
      : connection_(connection), pq_(connection.pq()) {}

  pqxx::result Run(const Query& query, const Params& params) override {
    connection_.Prepare(query.name, query.text);
    const std::vector<const char*> values = params.Pointers();
    return pq_.exec_prepared(query.name, pqxx::prepare::make_dynamic_params(values));
  }
  pqxx::result RunText(const std::string& sql, const Params& params) override {
    const std::vector<const char*> values = params.Pointers();
    return pq_.exec_params(sql, pqxx::prepare::make_dynamic_params(values));
  }
  void RunScript(const std::string& sql) override { pq_.exec(sql); }
  std::string Quote(const std::string& text) override { return pq_.quote(text); }

  void Commit() { pq_.commit(); }

 private:
  Connection& connection_;
  Pq pq_;
};

using Write = OpenTransaction<pqxx::transaction<pqxx::read_committed>>;
using Snapshot = OpenTransaction<pqxx::transaction<pqxx::repeatable_read, pqxx::read_only>>;

template <typename Open>
absl::Status RunOnce(Connection& connection, bool in_doubt,
                     absl::FunctionRef<absl::Status(Transaction&)> body) {
  Open transaction(connection);
  transaction.repeated_in_doubt = in_doubt;
  absl::Status status = body(transaction);
  if (status.ok()) transaction.Commit();
  return status;
}

std::string QuoteConninfo(const std::string& value) {
  return absl::StrCat("'", absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

}  // namespace

absl::StatusOr<std::string> CompleteConninfo(const std::string& conninfo, const Options& options) {
  char* error = nullptr;
  PQconninfoOption* parsed = PQconninfoParse(conninfo.c_str(), &error);
  if (parsed == nullptr) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat("database: ", error == nullptr ? "" : error));
    PQfreemem(error);
    return status;
  }
  std::map<std::string, std::string> words = {
      {"application_name", options.application_name},
      {"client_encoding", "UTF8"},
      {"connect_timeout", "5"},
      {"keepalives_idle", "10"},
      {"keepalives_interval", "5"},
      {"keepalives_count", "3"},
      {"tcp_user_timeout", "20000"},
  };
  for (const PQconninfoOption* option = parsed; option->keyword != nullptr; ++option) {
    if (option->val != nullptr) words[option->keyword] = option->val;
  }
  PQconninfoFree(parsed);
  const int64_t statement = absl::ToInt64Milliseconds(options.statement_timeout);
  const int64_t idle = absl::ToInt64Milliseconds(options.idle_in_transaction_timeout);
  words["options"] =
      absl::StrCat(words["options"], " -c statement_timeout=", statement,
                   " -c idle_in_transaction_session_timeout=", idle, " -c timezone=UTC");
  std::string complete;
  for (const auto& [word, value] : words) {
    absl::StrAppend(&complete, word, "=", QuoteConninfo(value), " ");
  }
  return complete;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
Connection::Connection(const std::string& conninfo) : pq_(conninfo) {
  pq_.inhibit_reactivation(true);
}
#pragma GCC diagnostic pop

void Connection::Prepare(const char* name, const char* text) {
  if (prepared_.insert(name).second) pq_.prepare(name, text);
}

Database::Database(std::string conninfo, int max_connections)
    : conninfo_(std::move(conninfo)), max_connections_(max_connections) {}

Database::~Database() = default;

absl::StatusOr<std::unique_ptr<Connection>> Database::Borrow(const char* what) {
  {
    absl::MutexLock lock(&mu_);
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return borrowed_ < max_connections_;
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&free), kPoolWait)) {
      return absl::UnavailableError(
          absl::StrCat(what, ": all ", max_connections_, " database connections are busy"));
    }
    ++borrowed_;
    if (!idle_.empty()) {
      std::unique_ptr<Connection> connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  try {
    return std::make_unique<Connection>(conninfo_);
  } catch (...) {
    GiveBack(nullptr);
    return FaultOfCurrentException(what).status;
  }
}

void Database::GiveBack(std::unique_ptr<Connection> connection) {
  std::vector<std::unique_ptr<Connection>> lost;  // closed after the lock is released
  absl::MutexLock lock(&mu_);
  --borrowed_;
  if (connection != nullptr) {
    idle_.push_back(std::move(connection));
  } else {
    idle_.swap(lost);  // what broke one connection mostly broke all of them
  }
}

absl::Status Database::Transact(const char* what, Access access,
                                absl::FunctionRef<absl::Status(Transaction&)> body) {
  bool in_doubt = false;
  for (int tries = 1;; ++tries) {
    absl::StatusOr<std::unique_ptr<Connection>> borrowed = Borrow(what);
    if (!borrowed.ok()) return borrowed.status();
    std::unique_ptr<Connection> connection = *std::move(borrowed);
    Fault fault;
    try {
      const absl::Status status = access == Access::kWrite
                                      ? RunOnce<Write>(*connection, in_doubt, body)
                                      : RunOnce<Snapshot>(*connection, in_doubt, body);
      GiveBack(std::move(connection));
      return status;
    } catch (...) {
      fault = FaultOfCurrentException(what);
    }
    if (fault.connection_lost) connection.reset();
    GiveBack(std::move(connection));
    in_doubt = in_doubt || fault.in_doubt;
    if (!fault.again || tries == kTries) return fault.status;
    absl::SleepFor(absl::Milliseconds(1 << tries));
  }
}

}  // namespace trainyard::postgres
