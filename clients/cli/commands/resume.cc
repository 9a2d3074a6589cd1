#include "clients/cli/job_action.h"

namespace trainyard::cli {

void AddResume(CLI::App& root, Session& session) {
  AddJobAction(root, session, "resume", "Put paused, failed or cancelled jobs back into the queue",
               CallWithName(&Client::ResumeJob));
}

}  // namespace trainyard::cli
