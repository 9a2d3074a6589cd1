#include "storage/postgres/database.h"

#include <libpq-fe.h>

#include <algorithm>
#include <map>
#include <pqxx/pqxx>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/call_limit.h"
#include "storage/postgres/connection.h"
#include "storage/postgres/fault.h"

namespace trainyard::postgres {
namespace {

constexpr int kTries = 5;
constexpr absl::Duration kPoolWait = absl::Seconds(10);
// How long the one call that tries a silent database may take: callers that waited for a thread or
// a connection before have waited long enough.
constexpr absl::Duration kTryLimit = absl::Seconds(1);
// Before the second try, and doubled for each further one: most faults pass at once, a fail-over
// takes longer.
constexpr absl::Duration kFirstPause = absl::Milliseconds(2);

template <typename Pq>
class OpenTransaction : public Transaction {
 public:
  // `heard` is called after every answer.
  OpenTransaction(Connection& connection, absl::FunctionRef<void()> heard)
      : connection_(connection), heard_(heard), pq_(connection.pq()) {}

  pqxx::result Run(const Query& query, const Params& params) override {
    connection_.Prepare(query.name, query.text);
    const std::vector<const char*> values = params.Pointers();
    return Answered(pq_.exec_prepared(query.name, pqxx::prepare::make_dynamic_params(values)));
  }
  pqxx::result RunText(const std::string& sql, const Params& params) override {
    const std::vector<const char*> values = params.Pointers();
    return Answered(pq_.exec_params(sql, pqxx::prepare::make_dynamic_params(values)));
  }
  void RunScript(const std::string& sql) override { Answered(pq_.exec(sql)); }
  std::string Quote(const std::string& text) override { return pq_.quote(text); }

  void Commit() { pq_.commit(); }

 private:
  pqxx::result Answered(pqxx::result result) {
    heard_();
    return result;
  }

  Connection& connection_;
  const absl::FunctionRef<void()> heard_;
  Pq pq_;
};

using Write = OpenTransaction<pqxx::transaction<pqxx::read_committed>>;
using Statements = OpenTransaction<pqxx::nontransaction>;
using Snapshot = OpenTransaction<pqxx::transaction<pqxx::repeatable_read, pqxx::read_only>>;

template <typename Open>
absl::Status RunOnce(Connection& connection, bool in_doubt, absl::FunctionRef<void()> heard,
                     absl::FunctionRef<absl::Status(Transaction&)> body) {
  Open transaction(connection, heard);
  transaction.repeated_in_doubt = in_doubt;
  absl::Status status = body(transaction);
  if (status.ok()) transaction.Commit();
  return status;
}

absl::Status RunAs(Access access, Connection& connection, bool in_doubt,
                   absl::FunctionRef<void()> heard,
                   absl::FunctionRef<absl::Status(Transaction&)> body) {
  switch (access) {
    case Access::kWrite:
      return RunOnce<Write>(connection, in_doubt, heard, body);
    case Access::kSnapshot:
      return RunOnce<Snapshot>(connection, in_doubt, heard, body);
    case Access::kStatements:
      return RunOnce<Statements>(connection, in_doubt, heard, body);
  }
  return absl::InternalError("no such access");
}

std::string QuoteConninfo(const std::string& value) {
  return absl::StrCat("'", absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

absl::Duration SinceBoot() { return SystemClock().SinceBoot(); }

absl::Status NotAnswered(const char* what, absl::Duration limit) {
  return absl::UnavailableError(
      absl::StrCat(what, ": the database did not answer within ", absl::FormatDuration(limit)));
}

}  // namespace

std::string MakeConninfo(const std::map<std::string, std::string>& words) {
  std::string conninfo;
  for (const auto& [word, value] : words) {
    absl::StrAppend(&conninfo, word, "=", QuoteConninfo(value), " ");
  }
  return conninfo;
}

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
      // A stand-by may answer reads with old data, and refuses writes.
      {"target_session_attrs", "read-write"},
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
  // Plans are kept, and the first are made while the tables are empty, when reading a whole table
  // is cheap: enable_seqscan=off keeps such plans from being chosen where there is another way.
  // Where there is none, the high cost that the planner then assumes must not make it compile the
  // plan (jit=off). Rows that are looked up are mostly in memory, and disks that have to seek are
  // rare (random_page_cost).
  words["options"] =
      absl::StrCat(words["options"], " -c statement_timeout=", statement,
                   " -c idle_in_transaction_session_timeout=", idle,
                   " -c timezone=UTC -c enable_seqscan=off -c jit=off -c random_page_cost=1.1");
  return MakeConninfo(words);
}

Database::Database(std::string conninfo, int max_connections, absl::Duration longest)
    : hosts_(ConninfoOfEachHost(conninfo)), max_connections_(max_connections), longest_(longest) {}

Database::~Database() = default;

absl::StatusOr<std::unique_ptr<Connection>> Database::Borrow(const char* what,
                                                             absl::Duration deadline) {
  {
    absl::MutexLock lock(&mu_);
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return borrowed_ < max_connections_;
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&free),
                              std::min(deadline - SinceBoot(), kPoolWait))) {
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
  absl::StatusOr<std::unique_ptr<Connection>> connection = Connect(what, deadline);
  if (!connection.ok()) GiveBack(nullptr);
  return connection;
}

// Tries the hosts in turn, beginning with the one that accepted a connection last. Each gets its
// share of the time that is left.
absl::StatusOr<std::unique_ptr<Connection>> Database::Connect(const char* what,
                                                              absl::Duration deadline) {
  size_t first = 0;
  {
    absl::MutexLock lock(&mu_);
    first = host_;
  }
  absl::Status failed;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const size_t host = (first + i) % hosts_.size();
    const absl::Duration now = SinceBoot();
    const absl::Duration share = (deadline - now) / static_cast<int64_t>(hosts_.size() - i);
    try {
      auto connection =
          std::make_unique<Connection>(hosts_[host], now + std::min(share, kConnectLimit));
      Heard();
      absl::MutexLock lock(&mu_);
      host_ = host;
      return connection;
    } catch (...) {
      failed = FaultOfCurrentException(what).status;
    }
  }
  return failed;
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

absl::Status Database::AllowCallWhileSilent(const char* what, absl::Duration started,
                                            bool& trying) {
  absl::MutexLock lock(&mu_);
  if (silent_since_ == absl::InfiniteDuration()) return absl::OkStatus();
  if (someone_tries_) {
    return absl::UnavailableError(
        absl::StrCat(what, ": the database has not answered for ",
                     absl::FormatDuration(absl::Trunc(started - silent_since_, absl::Seconds(1)))));
  }
  someone_tries_ = trying = true;
  return absl::OkStatus();
}

void Database::Heard() {
  absl::MutexLock lock(&mu_);
  heard_ = SinceBoot();
  silent_since_ = absl::InfiniteDuration();
}

void Database::NoteSilenceSince(absl::Duration started) {
  absl::MutexLock lock(&mu_);
  if (heard_ < started) silent_since_ = std::min(silent_since_, started);
}

absl::Status Database::TryOnce(const char* what, Access access, bool in_doubt,
                               absl::Duration deadline,
                               absl::FunctionRef<absl::Status(Transaction&)> body, Fault& fault) {
  const absl::Duration started = SinceBoot();
  absl::StatusOr<std::unique_ptr<Connection>> borrowed = Borrow(what, deadline);
  if (!borrowed.ok()) {
    if (SinceBoot() >= deadline) NoteSilenceSince(started);
    return borrowed.status();
  }
  std::unique_ptr<Connection> connection = *std::move(borrowed);
  const auto heard = [this] { Heard(); };
  bool cut = false;
  bool answered = false;
  {  // the guard must end before another may borrow the connection
    const CutOffs::Guard guard(cut_offs_, connection->socket(), deadline);
    try {
      fault.status = RunAs(access, *connection, in_doubt, heard, body);
      cut = guard.fired();  // at the last moment, after the answer
      answered = !cut;
    } catch (...) {
      fault = FaultOfCurrentException(what);
      cut = guard.fired();
      if (cut) fault = {.status = NotAnswered(what, deadline - started)};
    }
  }
  if (cut) {
    NoteSilenceSince(started);
  } else if (answered || !fault.connection_lost) {
    Heard();
  }
  if (cut || fault.connection_lost) {
    connection.reset();
    ++losses_;
  }
  GiveBack(std::move(connection));
  return fault.status;
}

absl::Status Database::Transact(const char* what, Access access,
                                absl::FunctionRef<absl::Status(Transaction&)> body) {
  const absl::Duration started = SinceBoot();
  bool trying = false;
  TY_RETURN_IF_ERROR(AllowCallWhileSilent(what, started, trying));
  const absl::Duration deadline =
      started +
      std::min({longest_, CurrentCallLimit(), trying ? kTryLimit : absl::InfiniteDuration()});
  bool in_doubt = false;
  absl::Status status;
  absl::Duration pause = kFirstPause;
  for (int tries = 1;; ++tries) {
    Fault fault;
    status = TryOnce(what, access, in_doubt, deadline, body, fault);
    in_doubt = in_doubt || fault.in_doubt;
    if (!fault.again || tries == kTries || SinceBoot() + pause >= deadline) break;
    absl::SleepFor(pause);
    pause *= 2;
  }
  if (trying) {
    absl::MutexLock lock(&mu_);
    someone_tries_ = false;
  }
  return status;
}

}  // namespace trainyard::postgres
