#include "clients/cli/job_action.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

// The answer is a job that has nothing left but its name.
absl::StatusOr<v1::Job> Delete(Client& client, const std::string& name) {
  v1::DeleteJobRequest request;
  request.set_name(name);
  TY_RETURN_IF_ERROR(client.DeleteJob(request));
  v1::Job gone;
  gone.set_name(name);
  return gone;
}

}  // namespace

void AddDelete(CLI::App& root, Session& session) {
  AddJobAction(root, session, "delete",
               "Remove the records of jobs that ended; checkpoint files stay", Delete);
}

}  // namespace trainyard::cli
