#pragma once

#include <memory>

#include "executor/engine/parallel/authentication.h"
#include "executor/engine/parallel/data_link.h"
#include "executor/engine/parallel/handshake.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// A link over a TCP connection. Header and payload of each message are followed by a tag that only
// the two ranks can make; a message that does not verify is kUnavailable, and what is received must
// not be used then.
std::unique_ptr<DataLink> MakeTcpLink(FileDescriptor socket, const Session& session,
                                      LinkNames names);

}  // namespace trainyard::engine
