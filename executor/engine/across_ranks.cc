#include "executor/engine/across_ranks.h"

#include <utility>

#include "executor/engine/across_gpus.h"
#include "executor/engine/across_hosts.h"
#include "executor/engine/across_owners.h"
#include "executor/engine/across_parameter_owners.h"
#include "storage/base/status.h"

namespace trainyard::engine {

absl::StatusOr<std::unique_ptr<AcrossRanks>> AcrossRanks::Make(Session& session, const Gang& gang) {
  if (gang.links() == nullptr) {
    if (session.plan().parameters_sharded) {
      return std::make_unique<AcrossParameterOwners>(session, gang);
    }
    if (session.plan().gradients_sharded) return std::make_unique<AcrossOwners>(session, gang);
    return std::make_unique<AcrossHosts>(session, gang);
  }
  TY_ASSIGN_OR_RETURN(std::unique_ptr<AcrossGpus> made, AcrossGpus::Make(session, gang));
  return made;
}

}  // namespace trainyard::engine
