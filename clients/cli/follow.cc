#include "clients/cli/follow.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "clients/cli/format.h"
#include "clients/cli/progress.h"
#include "clients/cpp/job_watcher.h"
#include "storage/base/status.h"

namespace trainyard::cli {

absl::StatusOr<int> FollowJob(Session& session, const std::string& name, int64_t after_sequence) {
  Stop stop;
  const Interrupt::Scope scope(session.interrupt(), stop);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::GetJobRequest get;
  get.set_name(name);
  TY_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(get));
  WatchOptions options;
  options.after_sequence = after_sequence;
  JobWatcher watcher(*client, job.name(), options);
  ProgressView view(session.terminal(), session.out(), SystemClock(), job);
  const bool json = session.format() == OutputFormat::kJson;
  JobWatcher::Handlers handlers;
  handlers.on_item = [&](const v1::FeedItem& item) {
    if (json)
      session.out().Write(JsonLine(item));
    else
      view.OnItem(item);
    return true;
  };
  handlers.on_lost = [&](const absl::Status& status) {
    if (!json) view.OnLost(status);
  };
  handlers.on_back = [&] {
    if (!json) view.OnBack();
  };
  const absl::StatusOr<v1::Job> end = watcher.Run(handlers, stop);
  if (end.ok()) {
    if (!json) view.Finish(*end);
    return ExitCodeOf(end->state());
  }
  if (!json) view.Leave();
  if (!stop.requested()) return end.status();
  session.err().Write(absl::StrCat("detached; the job goes on. Come back with `trainyard watch ",
                                   LastSegment(job.name()), "`, end it with `trainyard cancel ",
                                   LastSegment(job.name()), "`.\n"));
  return kExitInterrupted;
}

}  // namespace trainyard::cli
