#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// "HOST:PORT" or several with commas between them: the servers of one yard, any of which will do.
// kInvalidArgument names the address that cannot be one, and why. An address with another scheme
// (unix:PATH, dns:///HOST:PORT) and a host without a port are left to gRPC to judge.
absl::StatusOr<std::vector<std::string>> ParseServers(absl::string_view list);

// Whether "HOST:PORT", or unix:PATH, is of this machine alone: nothing that is said there travels
// over a network. A name other than localhost is taken for another machine's.
bool IsLoopback(absl::string_view server);

}  // namespace trainyard
