#include "clients/cli/job_action.h"

namespace trainyard::cli {

void AddResume(CLI::App& root, Session& session) {
  AddJobAction(root, session, "resume", "Put paused, failed or cancelled jobs back into the queue",
               [](Client& client, const std::string& name) {
                 v1::ResumeJobRequest request;
                 request.set_name(name);
                 return client.ResumeJob(request);
               });
}

}  // namespace trainyard::cli
