#pragma once

// TCP sockets of ranks: none of them blocks, and none is inherited by programs that are started.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// Listens on `address` ("host:port" or "[host]:port"), of which `interface_host`, unless it is
// empty, replaces the host. kUnavailable: the port is in use, or the host is not one of this
// machine's; both messages name the address.
absl::StatusOr<FileDescriptor> ListenOn(absl::string_view address,
                                        absl::string_view interface_host);

// Begins to connect to `address`; the socket becomes writable once that is done, or fails. Waits
// for the resolver where `address` holds a name; of several addresses that belong to a name, each
// `attempt` takes another one. kInvalidArgument: no address.
absl::StatusOr<FileDescriptor> ConnectTo(absl::string_view address, int attempt);

// The next connection, or an invalid one when there is none (any more).
FileDescriptor AcceptFrom(int listener);

// 0 once a socket of ConnectTo is connected, else what went wrong, as an errno.
int ConnectError(int socket);

// An eventfd that a thread waits on. Rung any number of times, it wakes once.
absl::StatusOr<FileDescriptor> MakeDoorbell();
void RingDoorbell(int doorbell);
void SilenceDoorbell(int doorbell);

}  // namespace trainyard::engine
