#pragma once

// Connections and transactions. Every store method is one call of Run.

#include <atomic>
#include <map>
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
#include "storage/postgres/cut_off.h"
#include "storage/postgres/params.h"
#include "storage/postgres/postgres.h"
#include "storage/postgres/query.h"

namespace pqxx {
class result;
}

namespace trainyard::postgres {

class Connection;
struct Fault;

// libpq's words as one conninfo string, quoted.
std::string MakeConninfo(const std::map<std::string, std::string>& words);

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
  // Each statement is a transaction of its own, committed when it returns: no round trips for BEGIN
  // and COMMIT.
  kStatements,
};

// A bounded pool; a thread borrows a connection for one transaction. Thread-safe.
//
// No call lasts longer than `longest` (infinite: no bound), or than the CallLimit of its thread:
// its connection is cut and it returns kUnavailable. Once a call ended that way, and no other was
// answered meanwhile, the database counts as silent: one call at a time then tries it, for a second
// at most, and all others return kUnavailable at once, so that threads stay free for work that does
// not need the database. The first answer ends this.
class Database {
 public:
  Database(std::string conninfo, int max_connections, absl::Duration longest);
  ~Database();

  // Runs `body` in a transaction and commits when it returns OK. Runs it again, on a new connection
  // where needed, when a deadlock, a lost connection or a commit in doubt broke it: `body` must be
  // such that a second run after a hidden success does no harm. `what` begins error messages.
  // kUnavailable: the database is away, busy, or does not answer in time; what was to be written
  // may yet be committed.
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

  // Grows when a connection is lost: PostgreSQL may have crashed, and may then give new
  // transactions numbers that were seen before.
  int64_t losses() const { return losses_; }

 private:
  static absl::Status StatusOf(const absl::Status& status) { return status; }
  template <typename T>
  static absl::Status StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }

  absl::Status Transact(const char* what, Access access,
                        absl::FunctionRef<absl::Status(Transaction&)> body);
  // One try on one connection. `fault` tells what broke it, if anything did.
  absl::Status TryOnce(const char* what, Access access, bool in_doubt, absl::Duration deadline,
                       absl::FunctionRef<absl::Status(Transaction&)> body, Fault& fault);
  absl::StatusOr<std::unique_ptr<Connection>> Borrow(const char* what, absl::Duration deadline);
  absl::StatusOr<std::unique_ptr<Connection>> Connect(const char* what, absl::Duration deadline);
  void GiveBack(std::unique_ptr<Connection> connection);  // null: it was lost

  absl::Status AllowCallWhileSilent(const char* what, absl::Duration started, bool& trying);
  void Heard();  // the database answered, whatever it said
  void NoteSilenceSince(absl::Duration started);

  // Times are those of Clock::SinceBoot.
  const std::vector<std::string> hosts_;  // a conninfo each
  const int max_connections_;
  const absl::Duration longest_;
  CutOffs cut_offs_;
  std::atomic<int64_t> losses_{0};
  absl::Mutex mu_;
  int borrowed_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Connection>> idle_ ABSL_GUARDED_BY(mu_);
  size_t host_ ABSL_GUARDED_BY(mu_) = 0;  // the one that accepted a connection last
  absl::Duration heard_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  absl::Duration silent_since_ ABSL_GUARDED_BY(mu_) =
      absl::InfiniteDuration();                      // infinite: it answers
  bool someone_tries_ ABSL_GUARDED_BY(mu_) = false;  // while it is silent
};

}  // namespace trainyard::postgres
