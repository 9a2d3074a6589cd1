#include "executor/worker/sample_command.h"

#include <filesystem>
#include <iostream>
#include <optional>

#include "absl/strings/match.h"
#include "executor/data/files/utf8.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "executor/worker/exit_code.h"
#include "executor/worker/open_device.h"
#include "storage/base/status.h"
#include "storage/objects/object_store.h"

namespace trainyard::worker {
namespace {

using engine::Fault;
using engine::WithFault;

constexpr absl::string_view kBest = "/best";

// The best checkpoint in `folder` or in its folder `checkpoints`.
absl::StatusOr<std::string> FindBest(ObjectStore& store, const std::string& folder) {
  for (const std::string& root : {folder, folder + "/checkpoints"}) {
    TY_ASSIGN_OR_FAULT(Fault::kStorage, const std::vector<int64_t> steps,
                       engine::ListSteps(store, root));
    if (steps.empty()) continue;
    const absl::StatusOr<int64_t> best = engine::BestStep(store, root);
    if (best.ok()) return absl::StrCat(root, "/", engine::StepFolder(*best));
    return WithFault(absl::IsNotFound(best.status()) ? Fault::kSpec : Fault::kStorage,
                     best.status());
  }
  return WithFault(Fault::kSpec,
                   absl::NotFoundError(absl::StrCat(folder, ": there is no checkpoint")));
}

// The checkpoint that `given` names: itself, or the newest in it or in its folder `checkpoints`;
// with "/best" at its end, the best one there.
absl::StatusOr<std::string> FindCheckpoint(ObjectStore& store, const std::string& given) {
  if (absl::EndsWith(given, kBest)) {
    return FindBest(store, given.substr(0, given.size() - kBest.size()));
  }
  for (const std::string& root : {given, given + "/checkpoints"}) {
    TY_ASSIGN_OR_FAULT(Fault::kStorage, const std::vector<std::string> names, store.List(root));
    for (const std::string& name : names) {
      if (name == engine::kManifestFile) return root;
    }
    TY_ASSIGN_OR_FAULT(Fault::kStorage, const std::vector<int64_t> steps,
                       engine::ListSteps(store, root));
    if (!steps.empty()) return absl::StrCat(root, "/", engine::StepFolder(steps.back()));
  }
  return WithFault(Fault::kSpec,
                   absl::NotFoundError(absl::StrCat(given, ": there is no checkpoint")));
}

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const data::Tokenizer& tokenizer,
                                                  const std::string& prompt) {
  if (!prompt.empty()) return tokenizer.Encode(prompt);
  absl::StatusOr<std::vector<int32_t>> line_break = tokenizer.Encode("\n");
  return line_break.ok() ? *line_break : std::vector<int32_t>{0};
}

absl::Status Sample(const SampleCommand& command) {
  std::string given = command.checkpoint;
  if (!absl::StrContains(given, "://")) {
    given = std::filesystem::absolute(given).lexically_normal().string();
  }
  while (given.size() > 1 && given.back() == '/') given.pop_back();
  TY_ASSIGN_OR_FAULT(Fault::kSpec, const std::unique_ptr<ObjectStore> store,
                     OpenObjectStore(given));
  TY_ASSIGN_OR_RETURN(const std::string uri, FindCheckpoint(*store, given));
  TY_ASSIGN_OR_FAULT(Fault::kStorage, const engine::Checkpoint checkpoint,
                     engine::Checkpoint::Open(*store, uri, ""));
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device,
                      OpenDevice(command.device, command.threads));
  TY_ASSIGN_OR_FAULT(Fault::kSpec, const std::unique_ptr<engine::Sampler> sampler,
                     engine::Sampler::Load(*device, checkpoint));

  if (checkpoint.tokenizer.name.empty()) {
    if (!command.prompt.empty()) {
      return WithFault(
          Fault::kSpec,
          absl::InvalidArgumentError("--prompt: this checkpoint has no tokenizer, only token ids"));
    }
    return sampler->Run({0}, checkpoint.config.facts.vocab, command.options,
                        [](int32_t id) { std::cout << id << '\n'; });
  }
  TY_ASSIGN_OR_FAULT(Fault::kStorage, const std::unique_ptr<const data::Tokenizer> tokenizer,
                     data::ReadTokenizer(checkpoint.tokenizer));
  if (tokenizer->size() > checkpoint.config.facts.vocab) {
    return WithFault(Fault::kStorage,
                     absl::DataLossError(absl::StrCat(uri, ": a tokenizer of ", tokenizer->size(),
                                                      " for a model of ",
                                                      checkpoint.config.facts.vocab, " tokens")));
  }
  TY_ASSIGN_OR_FAULT(Fault::kSpec, const std::vector<int32_t> prompt,
                     EncodePrompt(*tokenizer, command.prompt));
  data::Utf8Stream characters;  // a token may end in the middle of a character
  std::cout << characters.Add(command.prompt);
  TY_RETURN_IF_ERROR(sampler->Run(prompt, tokenizer->size(), command.options, [&](int32_t id) {
    std::cout << characters.Add(tokenizer->BytesOf(id)) << std::flush;
  }));
  std::cout << characters.Finish() << std::endl;
  return absl::OkStatus();
}

}  // namespace

int RunSample(const SampleCommand& command) {
  const absl::Status status = Sample(command);
  if (!status.ok()) std::cerr << "trainyard-worker sample: " << status.message() << std::endl;
  return ExitCodeOf(status);
}

}  // namespace trainyard::worker
