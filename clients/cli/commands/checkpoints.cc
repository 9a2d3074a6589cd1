#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "clients/cli/commands.h"
#include "clients/cli/format.h"
#include "clients/cli/shown.h"
#include "clients/cli/table.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

// "loss 1.2345 accuracy 0.9"
std::string Metrics(const v1::Checkpoint& checkpoint) {
  const std::map<std::string, double> sorted(checkpoint.metrics().begin(),
                                             checkpoint.metrics().end());
  std::vector<std::string> parts;
  for (const auto& [name, value] : sorted) {
    parts.push_back(absl::StrCat(name, " ", value));
  }
  return absl::StrJoin(parts, " ");
}

std::string Render(const Terminal& terminal, const std::vector<v1::Checkpoint>& checkpoints) {
  Table table({"STEP", "ATTEMPT", "SIZE", "AGE", "FINAL", "BEST", "METRICS", "WEIGHTS", "URI"});
  for (const int column : {0, 1, 2, 3}) table.AlignRight(column);
  for (const v1::Checkpoint& raw : checkpoints) {
    const v1::Checkpoint c = Shown(raw);
    table.Add({FormatCount(c.step()), absl::StrCat(c.attempt()), FormatBytes(c.bytes()),
               FormatAge(absl::Now() - TimeOf(c.create_time())), c.final() ? "yes" : "",
               c.best_rank() > 0 ? absl::StrCat(c.best_rank()) : "", Metrics(c),
               c.weights_sha256().substr(0, 12), c.uri()});
  }
  return table.Render(terminal);
}

absl::StatusOr<std::vector<v1::Checkpoint>> Fetch(Client& client, const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_parent(job);
  std::vector<v1::Checkpoint> all;
  do {
    TY_ASSIGN_OR_RETURN(v1::ListCheckpointsResponse page, client.ListCheckpoints(request));
    for (v1::Checkpoint& c : *page.mutable_checkpoints()) all.push_back(std::move(c));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<int> List(Session& session, const std::string& job) {
  TY_ASSIGN_OR_RETURN(const std::string name, session.JobName(job));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> all, Fetch(*client, name));
  if (session.WriteForPrograms(all)) return kExitOk;
  if (all.empty()) {
    session.err().Write("no checkpoints yet\n");
  } else {
    session.out().Write(Render(session.terminal(), all));
  }
  return kExitOk;
}

}  // namespace

void AddCheckpoints(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("checkpoints", "List the checkpoints of a job, newest first");
  auto job = std::make_shared<std::string>();  // lives as long as the command's body
  command->add_option("JOB", *job, "Id or full name of the job")->required();
  session.SetBody(command, [&session, job] { return List(session, *job); });
}

}  // namespace trainyard::cli
