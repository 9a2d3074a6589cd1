#pragma once

#include <exception>

#include "absl/status/status.h"

namespace trainyard::postgres {

// What an exception out of libpqxx means. The one place where exceptions become Status.
struct Fault {
  absl::Status status;
  bool connection_lost = false;  // the connection cannot be used again
  bool in_doubt = false;         // the commit may have happened
  bool again = false;            // the same transaction may succeed when it is run again
};

// Call inside a catch block.
Fault FaultOfCurrentException(const char* what);

}  // namespace trainyard::postgres
