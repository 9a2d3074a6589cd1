#pragma once

#include <memory>

#include "storage/objects/object_store.h"

namespace trainyard {

// Objects are files. A staged folder is `.tmp-{name}-{tag}` beside its place, renamed on commit; a
// deleted one is renamed to `.tmp-…` first. Replacing exchanges the two names at once; on a file
// system that cannot do that (NFS) the old folder is `.old-{name}` until the new one has its place.
// Every file and folder is fsynced before it is visible.
std::unique_ptr<ObjectStore> MakeFileStore();

}  // namespace trainyard
