#pragma once

// A unary call on a thread that may block. Includes gRPC: only for .cc files.

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
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

// The name of the method with this request.
template <typename Request>
std::string MethodOf() {
  const std::string& name = Request::descriptor()->name();
  return name.substr(0, name.size() - absl::string_view("Request").size());
}

// What a call did, for the audit, where its request does not say it.
struct AuditNote {
  std::string resource;
  std::string detail;
  bool changes = true;  // false: it was asked for a check alone
};

// Runs `answer`, which takes the Principal of the caller, and an AuditNote if it wants one, and
// returns absl::Status, when it is the caller's turn; a caller without `permission`, or from
// another project than the one that the request names, is refused instead. What was changed or
// refused is in the audit. The store calls in `answer` are bounded by kUserCallLimit. The calls of
// one principal have a line of their own in the queue; callers that are not known yet share one
// line. `b` is the service's and outlives the call, as `context` and `request` do.
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
    AuditNote note{.resource = std::string(ResourceOf(*request))};
    if (status.ok()) status = CheckProject(*caller, note.resource);
    const bool foreign = caller.ok() && !status.ok();
    if (status.ok()) {
      if constexpr (std::is_invocable_v<const Answer&, const Principal&, AuditNote&>) {
        status = answer(*caller, note);
      } else {
        status = answer(*caller);
      }
    }
    const std::string method = MethodOf<Request>();
    const std::optional<Principal> known =
        caller.ok() ? *caller : b.authenticator.PrincipalIfKnown(AuthorizationOf(*context));
    b.audit.Record({.principal = known.has_value() ? known->name : "",
                    .credential = known.has_value() ? CredentialOf(*known) : "",
                    .source = SourceOf(context->peer()),
                    .method = method,
                    .resource = std::move(note.resource),
                    .detail = std::move(note.detail)},
                   foreign ? absl::PermissionDeniedError(status.message()) : status,
                   caller.ok() && note.changes && !OnlyReads(method));
    reactor->Finish(ToGrpc(ForCaller(status)));
  };
  call.refuse = [reactor](const absl::Status& why) { reactor->Finish(Refusal(why)); };
  // Not by name alone: who makes tokens in one project does not fill the line of somebody of
  // others.
  const std::optional<Principal> known =
      b.authenticator.PrincipalIfKnown(AuthorizationOf(*context));
  b.calls.Post(known.has_value() ? absl::StrCat(known->project, "/", known->name) : "",
               std::move(call));
  return reactor;
}

}  // namespace trainyard
