#include "clients/cli/job_action.h"

namespace trainyard::cli {

void AddPause(CLI::App& root, Session& session) {
  AddJobAction(root, session, "pause", "Checkpoint jobs and give their slots back",
               CallWithName(&Client::PauseJob));
}

}  // namespace trainyard::cli
