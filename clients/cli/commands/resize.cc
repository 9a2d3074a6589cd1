#include <memory>
#include <optional>

#include "clients/cli/job_action.h"

namespace trainyard::cli {
namespace {

struct ResizeOptions {
  std::optional<int> slots, least, most;
};

}  // namespace

void AddResize(CLI::App& root, Session& session) {
  auto options = std::make_shared<ResizeOptions>();
  CLI::App* const command = AddJobAction(
      root, session, "resize", "Change how many slots jobs may have, also while they run",
      [options](Client& client, const std::string& name) {
        v1::ResizeJobRequest request;
        request.set_name(name);
        const std::optional<int> least = options->slots ? options->slots : options->least;
        const std::optional<int> most = options->slots ? options->slots : options->most;
        if (least.has_value()) request.set_min_slots(*least);
        if (most.has_value()) request.set_max_slots(*most);
        return client.ResizeJob(request);
      });
  CLI::Option_group* const range = command->add_option_group("slots");
  CLI::Option* const slots =
      range->add_option("--slots", options->slots, "So many, no more, no less");
  CLI::Option* const least = range->add_option("--min", options->least, "So many at least");
  CLI::Option* const most = range->add_option("--max", options->most, "So many at most");
  slots->excludes(least)->excludes(most);
  range->require_option(1, 2);
}

}  // namespace trainyard::cli
