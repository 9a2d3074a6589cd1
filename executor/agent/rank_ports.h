#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// The first of `slots` ports in a row that nothing on this machine listens at now: ranks on slot I
// listen at the first + I. Where the search begins depends on `node`, so that agents of several
// nodes on one machine, which start together, find different ones. kResourceExhausted: there are
// none.
absl::StatusOr<int> FreeRankPorts(absl::string_view node, int slots);

// HOST:PORT, an IPv6 host in brackets.
std::string WithPort(absl::string_view host, int port);

}  // namespace trainyard
