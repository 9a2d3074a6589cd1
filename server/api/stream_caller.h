#pragma once

// Who opens a stream. Includes gRPC: only for .cc files.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api/services.h"
#include "server/rpc/bridge.h"
#include "storage/base/status.h"

namespace trainyard {

class StreamCaller {
 public:
  // `method` is the stream's; `b` is the service's and outlives the stream.
  StreamCaller(const grpc::CallbackServerContext& context, const ServiceDependencies& b,
               std::string method)
      : authorization_(AuthorizationOf(context)),
        source_(SourceOf(context.peer())),
        method_(std::move(method)),
        authenticator_(b.authenticator),
        limits_(b.limits),
        audit_(b.audit) {}

  // Whether the caller may read jobs, `resource` is in its project, and it may have one stream
  // more. `stream` is told to EndWith why, should the caller's token count no more before what is
  // returned is gone. May block.
  template <typename Stream>
  absl::StatusOr<std::shared_ptr<void>> Admit(const std::string& resource,
                                              const std::shared_ptr<Stream>& stream) const {
    absl::StatusOr<Authenticator::Guarded> admitted =
        authenticator_.AdmitStream(authorization_, Permission::kReadJobs,
                                   [weak = std::weak_ptr<Stream>(stream)](const absl::Status& why) {
                                     const std::shared_ptr<Stream> open = weak.lock();
                                     if (open != nullptr) open->EndWith(why);
                                   });
    absl::Status status = admitted.status();
    if (status.ok()) status = CheckProject(admitted->principal, resource);
    if (!status.ok()) {
      const bool foreign = admitted.ok();
      const std::optional<Principal> known =
          foreign ? admitted->principal : authenticator_.PrincipalIfKnown(authorization_);
      audit_.Record({.principal = known.has_value() ? known->name : "",
                     .credential = known.has_value() ? CredentialOf(*known) : "",
                     .source = source_,
                     .method = method_,
                     .resource = resource},
                    foreign ? absl::PermissionDeniedError(status.message()) : status, false);
      return status;
    }
    TY_ASSIGN_OR_RETURN(std::shared_ptr<void> counted, limits_.TakeStream(admitted->principal));
    using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
    return std::make_shared<Both>(std::move(admitted->guard), std::move(counted));
  }

 private:
  const std::string authorization_, source_, method_;
  Authenticator& authenticator_;
  CallerLimits& limits_;
  AuditLog& audit_;
};

}  // namespace trainyard
