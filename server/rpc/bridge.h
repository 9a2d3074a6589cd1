#pragma once

// Between gRPC and the rest of the server: statuses and credentials.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace google::rpc {
class Status;
}  // namespace google::rpc

namespace trainyard {

// The codes are the same numbers; the message says field, found and expected; payloads become the
// details of a google.rpc.Status. Long messages are cut: trailers beyond 8 KiB are refused by
// peers.
grpc::Status ToGrpc(const absl::Status& status);

// The same as a message, for one of many answers of a call.
google::rpc::Status ToMessage(const absl::Status& status);

// `status` with google.rpc.RetryInfo: the same call may be sent again after `delay`.
absl::Status WithRetryInfo(absl::Status status, absl::Duration delay);

// The value of the metadata key `authorization`, or "".
std::string AuthorizationOf(const grpc::ServerContextBase& context);

}  // namespace trainyard
