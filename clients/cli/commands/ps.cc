#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/commands.h"
#include "clients/cli/job_filter.h"
#include "clients/cli/job_view.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct PsOptions {
  std::vector<std::string> states;
  std::string filter;
  bool all = false;
  int limit = 100;
  std::string page_token;
};

struct Page {
  std::vector<v1::Job> jobs;
  std::string next;  // token, when there is more
};

absl::StatusOr<Page> Fetch(Session& session, const PsOptions& options) {
  v1::ListJobsRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_parent(), session.Parent());
  TY_ASSIGN_OR_RETURN(*request.mutable_filter(),
                      BuildJobFilter(options.states, options.filter, options.all));
  request.set_page_token(options.page_token);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  Page page;
  do {
    const int wanted = options.limit - static_cast<int>(page.jobs.size());
    request.set_page_size(std::min(wanted, 1000));
    TY_ASSIGN_OR_RETURN(v1::ListJobsResponse response, client->ListJobs(request));
    for (v1::Job& job : *response.mutable_jobs()) page.jobs.push_back(std::move(job));
    page.next = response.next_page_token();
    request.set_page_token(page.next);
  } while (!page.next.empty() && static_cast<int>(page.jobs.size()) < options.limit);
  return page;
}

absl::StatusOr<int> List(Session& session, const PsOptions& options) {
  TY_ASSIGN_OR_RETURN(const Page page, Fetch(session, options));
  const bool written = session.WriteForPrograms(page.jobs);
  if (!written && !page.jobs.empty()) {
    session.out().Write(RenderJobs(session.terminal(), page.jobs, session.wide(), absl::Now()));
  } else if (!written) {
    session.err().Write(options.all || !options.states.empty() || !options.filter.empty()
                            ? "no such jobs\n"
                            : "no active jobs; `trainyard ps --all` shows those that ended\n");
  }
  if (!page.next.empty()) {
    session.err().Write(absl::StrCat("more: add --page-token ", page.next, "\n"));
  }
  return kExitOk;
}

}  // namespace

void AddPs(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("ps", "List jobs, newest first");
  command->alias("list");
  auto options = std::make_shared<PsOptions>();  // lives as long as the command's body
  command->add_option("-s,--state", options->states, "Only this state; may be repeated")
      ->allow_extra_args(false);
  command->add_option(
      "--filter", options->filter,
      "Terms joined by AND: state = RUNNING, labels.team = \"vision\", priority >= 5");
  command->add_flag("-a,--all", options->all, "Also jobs that ended");
  command->add_option("--limit", options->limit, "At most so many (default 100)")
      ->check(CLI::Range(1, 1000000));
  command->add_option("--page-token", options->page_token, "Go on after an earlier page");
  session.SetBody(command, [&session, options] { return List(session, *options); });
}

}  // namespace trainyard::cli
