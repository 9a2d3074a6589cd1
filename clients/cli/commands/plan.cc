#include "clients/cli/commands.h"
#include "clients/cli/job_source.h"
#include "clients/cli/job_view.h"
#include "clients/cli/option_checks.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct PlanOptions {
  std::string file;
  std::vector<std::string> sets;
  bool layouts = false;
  std::vector<int32_t> slots;
  double flops = 0, link = 0;  // per second
};

absl::StatusOr<int> PlanLayouts(Session& session, const PlanOptions& options, v1::Job job) {
  v1::PlanLayoutsRequest request;
  *request.mutable_job() = std::move(job);
  TY_ASSIGN_OR_RETURN(*request.mutable_parent(), session.Parent());
  request.mutable_slots()->Assign(options.slots.begin(), options.slots.end());
  request.set_vary_layout(true);
  request.set_slot_flops_per_second(options.flops);
  request.set_link_bytes_per_second(options.link);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::PlanLayoutsResponse plan, client->PlanLayouts(request));
  if (!session.WriteForPrograms(plan)) session.out().Write(RenderLayouts(session.terminal(), plan));
  return kExitOk;
}

absl::StatusOr<int> Plan(Session& session, const PlanOptions& options) {
  TY_ASSIGN_OR_RETURN(v1::Job of_file, ReadJob(options.file, options.sets));
  if (options.layouts || !options.slots.empty()) {
    return PlanLayouts(session, options, std::move(of_file));
  }
  v1::SubmitJobRequest request;
  *request.mutable_job() = std::move(of_file);
  TY_ASSIGN_OR_RETURN(*request.mutable_parent(), session.Parent());
  request.set_validate_only(true);
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::Job job, client->SubmitJob(std::move(request)));
  if (!session.WriteForPrograms(job.plan())) {
    session.out().Write(RenderPlan(session.terminal(), job));
  }
  return kExitOk;
}

}  // namespace

void AddPlan(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("plan", "What a job would cost: parameters, FLOPs, bytes per slot");
  auto options = std::make_shared<PlanOptions>();  // lives as long as the command's body
  command->add_option("FILE", options->file, "Job file in YAML, or - for standard input")
      ->required();
  command->add_option("--set", options->sets, "FIELD=VALUE on top of the file; may be repeated")
      ->allow_extra_args(false);
  CLI::Option* const layouts = command->add_flag(
      "--layouts", options->layouts,
      "On other numbers of slots, and with other numbers of ranks that share shards or are stages: "
      "memory, bytes sent, how busy they are");
  CLI::Option* const slots =
      command
          ->add_option(
              "--slots", options->slots,
              "These numbers of slots, as in 2,4,8, with as many ranks that share shards or are "
              "stages as divide them")
          ->delimiter(',')
          ->check(AtLeast(1));
  slots->excludes(layouts);
  command
      ->add_option("--flops", options->flops,
                   "FLOP/s that a slot reaches in training, as in 40T: estimates steps of layouts")
      ->transform(Rate());
  command
      ->add_option("--link", options->link,
                   "Bytes/s that a slot sends to all others together, as in 12.5G")
      ->transform(Rate());
  session.SetBody(command, [&session, options] { return Plan(session, *options); });
}

}  // namespace trainyard::cli
