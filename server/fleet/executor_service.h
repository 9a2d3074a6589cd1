#pragma once

#include <memory>

#include "server/audit/audit_log.h"
#include "server/auth/authenticator.h"
#include "server/auth/node_admission.h"
#include "server/fleet/fleet.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace trainyard {

// trainyard.v1.ExecutorService over `fleet`, in three forms. Who joins, and who is refused, is in
// the audit. Destroy it where grpcpp is included.

// Agents prove who they are by a token.
std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, Authenticator& authenticator,
                                                   AuditLog& audit);

// Agents prove who they are by the certificate of their node, which machines get here, too (Join).
// Calls of Join under way end when it is destroyed: shut the server down first.
std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, NodeAdmission& admission,
                                                   AuditLog& audit);

// Agents are told that they connect to another port.
std::shared_ptr<grpc::Service> MakeExecutorServiceElsewhere(Fleet& fleet, AuditLog& audit);

}  // namespace trainyard
