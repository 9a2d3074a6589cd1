#include "storage/postgres/fault.h"

#include <pqxx/pqxx>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "storage/postgres/params.h"

namespace trainyard::postgres {
namespace {

// SQLSTATEs (PostgreSQL, appendix A) that callers must tell apart.
Fault FaultOfState(const std::string& state, const std::string& message) {
  const auto in_class = [&state](const char* prefix) { return absl::StartsWith(state, prefix); };
  if (state == "40001" || state == "40P01") {  // serialization, deadlock
    return {.status = absl::UnavailableError(message), .again = true};
  }
  // Lock timeout. It is not retried at once, so that those who wait behind this transaction have
  // their turn.
  if (state == "55P03") return {.status = absl::UnavailableError(message)};
  // The server vanished in the middle of the statement: libpq itself, not PostgreSQL, says so. For
  // a COMMIT, nobody knows whether it happened.
  if (state.empty()) {
    return {.status = absl::UnavailableError(message),
            .connection_lost = true,
            .in_doubt = true,
            .again = true};
  }
  // Shut down, crashed, starting up, terminated for idling in a transaction; connection exceptions.
  if (in_class("57P") || in_class("08") || state == "25P03") {
    return {.status = absl::UnavailableError(message), .connection_lost = true, .again = true};
  }
  if (in_class("53")) {  // disk full, out of memory, too many connections
    return {.status =
                absl::UnavailableError(absl::StrCat("the database is out of resources: ", message)),
            .connection_lost = true};
  }
  if (state == "57014") return {.status = absl::UnavailableError(message)};  // statement timeout
  // Read only: a stand-by, or a primary that became one. Every connection to it must go, so that
  // new ones find the primary.
  if (state == "25006") {
    return {.status = absl::UnavailableError(message), .connection_lost = true, .again = true};
  }
  if (state == "22021" || state == "22P05") {  // not UTF-8, NUL
    return {.status = absl::InvalidArgumentError(message)};
  }
  return {.status = absl::InternalError(absl::StrCat(message, " (SQLSTATE ", state, ")"))};
}

}  // namespace

Fault FaultOfCurrentException(const char* what) {
  const auto text = [what](const std::exception& e) {
    return absl::StrCat(what, ": ", absl::StripAsciiWhitespace(e.what()));
  };
  try {
    throw;
  } catch (const pqxx::in_doubt_error& e) {
    return {.status = absl::UnavailableError(text(e)),
            .connection_lost = true,
            .in_doubt = true,
            .again = true};
  } catch (const pqxx::broken_connection& e) {
    return {.status = absl::UnavailableError(text(e)), .connection_lost = true, .again = true};
  } catch (const pqxx::statement_completion_unknown& e) {
    return {.status = absl::UnavailableError(text(e)),
            .connection_lost = true,
            .in_doubt = true,
            .again = true};
  } catch (const pqxx::transaction_rollback& e) {  // deadlock, serialization
    return {.status = absl::UnavailableError(text(e)), .again = true};
  } catch (const pqxx::sql_error& e) {
    return FaultOfState(e.sqlstate(), text(e));
  } catch (const BadText& e) {
    return {.status = absl::InvalidArgumentError(text(e))};
  } catch (const nlohmann::json::exception& e) {
    return {.status = absl::DataLossError(text(e))};
  } catch (const std::exception& e) {
    return {.status = absl::InternalError(text(e)), .connection_lost = true};
  }
}

}  // namespace trainyard::postgres
