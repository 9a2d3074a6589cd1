#include "clients/cli/job_action.h"

namespace trainyard::cli {

void AddCancel(CLI::App& root, Session& session) {
  AddJobAction(root, session, "cancel", "End jobs; what they computed stays",
               [](Client& client, const std::string& name) {
                 v1::CancelJobRequest request;
                 request.set_name(name);
                 return client.CancelJob(request);
               });
}

}  // namespace trainyard::cli
