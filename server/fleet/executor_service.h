#pragma once

#include <memory>

#include "server/auth/authenticator.h"
#include "server/auth/node_admission.h"
#include "server/fleet/fleet.h"
#include "server/work/call_queue.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace trainyard {

// trainyard.v1.ExecutorService over `fleet`. Destroy it where grpcpp is included. Agents prove who
// they are by a token,
std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, Authenticator& authenticator);
// or by the certificate of a node, which they get here, too, by calls of `calls`;
std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, NodeAdmission& admission,
                                                   CallQueue& calls);
// or are told that they connect to another port.
std::shared_ptr<grpc::Service> MakeExecutorServiceElsewhere(Fleet& fleet);

}  // namespace trainyard
