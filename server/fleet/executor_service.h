#pragma once

#include <memory>

#include "server/auth/authenticator.h"
#include "server/fleet/fleet.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace trainyard {

// trainyard.v1.ExecutorService over `fleet`. Destroy it where grpcpp is included.
std::shared_ptr<grpc::Service> MakeExecutorService(Fleet& fleet, Authenticator& authenticator);

}  // namespace trainyard
