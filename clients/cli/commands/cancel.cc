#include "clients/cli/job_action.h"

namespace trainyard::cli {

void AddCancel(CLI::App& root, Session& session) {
  AddJobAction(root, session, "cancel", "End jobs; what they computed stays",
               CallWithName(&Client::CancelJob));
}

}  // namespace trainyard::cli
