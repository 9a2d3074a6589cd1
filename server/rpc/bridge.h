#pragma once

// Between gRPC and the rest of the server: statuses and credentials.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace trainyard {

// The codes are the same numbers; the message says field, found and expected. Long messages are
// cut: trailers beyond 8 KiB are refused by peers.
grpc::Status ToGrpc(const absl::Status& status);

// The value of the metadata key `authorization`, or "".
std::string AuthorizationOf(const grpc::ServerContextBase& context);

}  // namespace trainyard
