#pragma once

// Connections and transactions. Every store method is one call of Run.

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/postgres/params.h"
#include "storage/postgres/postgres.h"
#include "storage/postgres/query.h"

namespace pqxx {
class result;
}

namespace trainyard::postgres {

class Connection;

// Adds what `options` say (timeouts, application name) to a conninfo string or URI of libpq.
absl::StatusOr<std::string> CompleteConninfo(const std::string& conninfo, const Options& options);

// One open transaction. Throws what libpqxx throws: only for code that Database::Run calls.
class Transaction {
 public:
  virtual ~Transaction() = default;

  // Runs a prepared statement.
  virtual pqxx::result Run(const Query& query, const Params& params) = 0;
  // Runs a statement whose text was made here.
  virtual pqxx::result RunText(const std::string& sql, const Params& params) = 0;
  // Runs several statements without parameters.
  virtual void RunScript(const std::string& sql) = 0;
  virtual std::string Quote(const std::string& text) = 0;

  // An earlier try of this transaction may have been committed although its answer was lost.
  bool repeated_in_doubt = false;
};

enum class Access {
  kWrite,     // READ COMMITTED
  kSnapshot,  // REPEATABLE READ READ ONLY: all statements see one state
};

// A bounded pool; a thread borrows a connection for one transaction. Thread-safe.
class Database {
 public:
  Database(std::string conninfo, int max_connections);
  ~Database();

  // Runs `body` in a transaction and commits when it returns OK. Runs it again, on a new connection
  // where needed, when a deadlock, a lost connection or a commit in doubt broke it: `body` must be
  // such that a second run after a hidden success does no harm. `what` begins error messages.
  // kUnavailable: the database is away or busy.
  template <typename Body>
  std::invoke_result_t<Body, Transaction&> Run(const char* what, const Body& body,
                                               Access access = Access::kWrite) {
    using Result = std::invoke_result_t<Body, Transaction&>;
    Result result = absl::UnknownError("not run");
    const absl::Status status = Transact(what, access, [&](Transaction& transaction) {
      result = body(transaction);
      return StatusOf(result);
    });
    if (!status.ok()) return status;
    return result;
  }

 private:
  static absl::Status StatusOf(const absl::Status& status) { return status; }
  template <typename T>
  static absl::Status StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }

  absl::Status Transact(const char* what, Access access,
                        absl::FunctionRef<absl::Status(Transaction&)> body);
  absl::StatusOr<std::unique_ptr<Connection>> Borrow(const char* what);
  void GiveBack(std::unique_ptr<Connection> connection);  // null: it was lost

  const std::string conninfo_;
  const int max_connections_;
  absl::Mutex mu_;
  int borrowed_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Connection>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard::postgres
