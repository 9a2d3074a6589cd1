#include "clients/cli/job_action.h"

namespace trainyard::cli {

void AddPause(CLI::App& root, Session& session) {
  AddJobAction(root, session, "pause", "Checkpoint jobs and give their slots back",
               [](Client& client, const std::string& name) {
                 v1::PauseJobRequest request;
                 request.set_name(name);
                 return client.PauseJob(request);
               });
}

}  // namespace trainyard::cli
