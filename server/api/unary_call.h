#pragma once

// A unary call on a thread that may block. Includes gRPC: only for .cc files.

#include <grpcpp/grpcpp.h>

#include <utility>

#include "server/api/services.h"
#include "server/rpc/bridge.h"
#include "storage/call_limit.h"

namespace trainyard {

// How long a caller that was refused, or whose call met a store that is away, should wait before it
// tries again.
inline constexpr absl::Duration kRetryDelay = absl::Milliseconds(500);

inline grpc::Status Refusal(const absl::Status& why) {
  return ToGrpc(WithRetryInfo(why, kRetryDelay));
}

// `status` as callers are told it: for a call that may be sent again it says after which time.
inline absl::Status ForCaller(const absl::Status& status) {
  return absl::IsUnavailable(status) ? WithRetryInfo(status, kRetryDelay) : status;
}

// What a request names, "projects/{project}/…" if that is in a project; "": nothing.
template <typename Request>
absl::string_view ResourceOf(const Request& request) {
  if constexpr (requires { request.parent(); }) {
    return request.parent();
  } else if constexpr (requires { request.name(); }) {
    return request.name();
  } else if constexpr (requires { absl::string_view(request.job()); }) {
    return request.job();
  } else {
    return "";
  }
}

// Runs `answer`, which takes the Principal of the caller and returns absl::Status, when it is the
// caller's turn; a caller without `permission`, or from another project than the one that the
// request names, is refused instead. The store calls in it are
// bounded by kUserCallLimit. The calls of one principal have a line of their own in the queue;
// callers that are not known yet share one line. `b` is the service's and outlives the call, as
// `context` and `request` do.
template <typename Request, typename Answer>
grpc::ServerUnaryReactor* RunCall(const ServiceDependencies& b, Permission permission,
                                  grpc::CallbackServerContext* context, const Request* request,
                                  Answer answer) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  QueuedCall call;
  call.bytes = static_cast<int64_t>(request->ByteSizeLong());
  call.run = [&b, permission, context, request, reactor, answer = std::move(answer)] {
    if (context->IsCancelled()) {  // gone while it waited for its turn
      return reactor->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone"));
    }
    const CallLimit limit(kUserCallLimit);
    const absl::StatusOr<Principal> caller =
        b.authenticator.Admit(AuthorizationOf(*context), permission);
    absl::Status status = caller.status();
    if (status.ok()) status = CheckProject(*caller, ResourceOf(*request));
    if (status.ok()) status = answer(*caller);
    reactor->Finish(ToGrpc(ForCaller(status)));
  };
  call.refuse = [reactor](const absl::Status& why) { reactor->Finish(Refusal(why)); };
  b.calls.Post(b.authenticator.PrincipalIfKnown(AuthorizationOf(*context)), std::move(call));
  return reactor;
}

}  // namespace trainyard
