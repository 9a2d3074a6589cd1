#pragma once

#include <memory>

#include "executor/engine/parallel/data_link.h"
#include "executor/engine/parallel/shared_memory.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// A link through memory that two processes of one host share. `their_doorbell` is rung when the
// other end waits and there is something for it to do. Messages carry no tags: who can write to
// this memory can also read the keys.
std::unique_ptr<DataLink> MakeMemoryLink(SharedMemory memory, FileDescriptor their_doorbell,
                                         LinkNames names);

}  // namespace trainyard::engine
