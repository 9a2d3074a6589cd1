#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "clients/cli/job_action.h"

namespace trainyard::cli {
namespace {

struct ResizeOptions {
  std::optional<int> slots, least, most, tensor, pipeline, chunks;
  bool sequence = false;
  std::string shard;

  bool has_layout() const {
    return tensor.has_value() || pipeline.has_value() || chunks.has_value() || sequence;
  }
};

v1::Layout LayoutOf(const ResizeOptions& options) {
  v1::Layout layout;
  layout.set_tensor(options.tensor.value_or(1));
  layout.set_pipeline(options.pipeline.value_or(1));
  if (options.chunks.has_value()) layout.set_chunks(*options.chunks);
  layout.set_sequence(options.sequence);
  return layout;
}

std::vector<std::string> NamesOfShards() {
  std::vector<std::string> names;
  for (int i = v1::Parallel::NONE; i <= v1::Parallel::Shard_MAX; ++i) {
    const auto shard = static_cast<v1::Parallel::Shard>(i);
    names.push_back(absl::AsciiStrToLower(v1::Parallel::Shard_Name(shard)));
  }
  return names;
}

}  // namespace

void AddResize(CLI::App& root, Session& session) {
  auto options = std::make_shared<ResizeOptions>();
  CLI::App* const command = AddJobAction(
      root, session, "resize",
      "Change how many slots jobs may have, and in what layout, also while they run",
      [options](Client& client, const std::string& name) {
        v1::ResizeJobRequest request;
        request.set_name(name);
        const std::optional<int> least = options->slots ? options->slots : options->least;
        const std::optional<int> most = options->slots ? options->slots : options->most;
        if (least.has_value()) request.set_min_slots(*least);
        if (most.has_value()) request.set_max_slots(*most);
        if (options->has_layout()) *request.mutable_layout() = LayoutOf(*options);
        v1::Parallel::Shard shard = v1::Parallel::SHARD_UNSPECIFIED;
        v1::Parallel::Shard_Parse(absl::AsciiStrToUpper(options->shard), &shard);
        request.set_shard(shard);
        return client.ResizeJob(request);
      });
  CLI::Option_group* const change = command->add_option_group(
      "change", "Of the layout what is left out is 1, or off. No bit of the weights changes");
  CLI::Option* const slots =
      change->add_option("--slots", options->slots, "So many, no more, no less");
  CLI::Option* const least = change->add_option("--min", options->least, "So many at least");
  CLI::Option* const most = change->add_option("--max", options->most, "So many at most");
  slots->excludes(least)->excludes(most);
  change->add_option("--tensor", options->tensor, "Layout: ranks that share the shards of a layer");
  change->add_option("--pipeline", options->pipeline, "Layout: stages of layers");
  change->add_option("--chunks", options->chunks, "Layout: pieces of the layers in each stage");
  change->add_flag("--sequence", options->sequence,
                   "Layout: ranks that share shards share out tokens, too");
  change->add_option("--shard", options->shard, "What of the state ranks share out")
      ->check(CLI::IsMember(NamesOfShards(), CLI::ignore_case));
  change->require_option(1, 0);
}

}  // namespace trainyard::cli
