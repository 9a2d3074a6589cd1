#include "executor/engine/checkpoint/read_checkpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "executor/engine/checkpoint/layout.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSmallFile = int64_t{16} << 20;  // bytes that a JSON file may have at most

absl::StatusOr<weights::SafetensorsFile> OpenTensors(ObjectStore& store, const std::string& uri,
                                                     const char* name) {
  const std::string place = absl::StrCat(uri, "/", name);
  TY_ASSIGN_OR_RETURN(std::unique_ptr<ObjectReader> reader, store.Open(place));
  return weights::SafetensorsFile::Open(std::move(reader), place);
}

absl::StatusOr<Manifest> ReadManifest(ObjectStore& store, const std::string& place) {
  TY_ASSIGN_OR_RETURN(const std::string json, store.Get(place, kSmallFile));
  absl::StatusOr<Manifest> manifest = ManifestFromJson(json);
  if (!manifest.ok()) return Annotate(manifest.status(), place);
  return manifest;
}

}  // namespace

absl::StatusOr<StateFile> ReadState(ObjectStore& store, const std::string& uri) {
  const std::string place = absl::StrCat(uri, "/", kStateFile);
  TY_ASSIGN_OR_RETURN(const std::string text, store.Get(place, kSmallFile));
  absl::StatusOr<StateFile> state = StateFromJson(text);
  if (!state.ok()) return Annotate(state.status(), place);
  return state;
}

absl::StatusOr<Manifest> ReadVerifiedManifest(ObjectStore& store, const std::string& uri,
                                              const std::string& manifest_sha256) {
  const std::string place = absl::StrCat(uri, "/", kManifestFile);
  absl::StatusOr<Manifest> manifest = ReadManifest(store, place);
  if (!manifest.ok()) return manifest;
  if (!manifest_sha256.empty() && manifest->sha256 != manifest_sha256) {
    return absl::DataLossError(absl::StrCat(place, ": has SHA-256 ", manifest->sha256, "; ",
                                            manifest_sha256, " was reported when it was written"));
  }
  const absl::Status verified = VerifyFiles(
      *manifest, [&](const std::string& name) { return store.Open(absl::StrCat(uri, "/", name)); });
  if (!verified.ok()) return Annotate(verified, uri);
  return manifest;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(ObjectStore& store, const std::string& uri,
                                            const std::string& manifest_sha256) {
  TY_ASSIGN_OR_RETURN(const Manifest manifest, ReadVerifiedManifest(store, uri, manifest_sha256));
  return Open(store, uri, manifest);
}

absl::StatusOr<Checkpoint> Checkpoint::OpenPacked(ObjectStore& store, const std::string& uri) {
  TY_ASSIGN_OR_RETURN(const Manifest manifest,
                      ReadManifest(store, absl::StrCat(uri, "/", kManifestFile)));
  return Open(store, uri, manifest);
}

absl::StatusOr<Checkpoint> Checkpoint::Open(ObjectStore& store, const std::string& uri,
                                            const Manifest& manifest) {
  TY_ASSIGN_OR_RETURN(StateFile state, ReadState(store, uri));
  if (state.step != manifest.step || state.spec_digest != manifest.spec_digest) {
    return absl::DataLossError(
        absl::StrCat(uri, "/", kStateFile, ": does not belong to step ", manifest.step));
  }
  TY_ASSIGN_OR_RETURN(const std::string text,
                      store.Get(absl::StrCat(uri, "/", kConfigFile), kSmallFile));
  absl::StatusOr<ModelConfig> config = ConfigFromJson(text);
  if (!config.ok()) return Annotate(config.status(), absl::StrCat(uri, "/", kConfigFile));

  data::NamedText tokenizer;
  for (const ManifestFile& file : manifest.files) {
    if (file.name != data::kVocabularyFile && file.name != data::kTokenizerFile) continue;
    tokenizer.name = file.name;
    TY_ASSIGN_OR_RETURN(tokenizer.text,
                        store.Get(absl::StrCat(uri, "/", file.name), data::kLargestTokenizerFile));
  }
  const auto has = [&](const char* name) {
    return absl::c_any_of(manifest.files, [&](const ManifestFile& f) { return f.name == name; });
  };
  const auto open_if_there =
      [&](const char* name) -> absl::StatusOr<std::optional<weights::SafetensorsFile>> {
    if (!has(name)) return std::nullopt;
    TY_ASSIGN_OR_RETURN(weights::SafetensorsFile file, OpenTensors(store, uri, name));
    return std::optional<weights::SafetensorsFile>(std::move(file));
  };
  TY_ASSIGN_OR_RETURN(std::optional<weights::SafetensorsFile> ema, open_if_there(kEmaFile));
  TY_ASSIGN_OR_RETURN(std::optional<weights::SafetensorsFile> adapter, open_if_there(kAdapterFile));
  TY_ASSIGN_OR_RETURN(std::optional<weights::SafetensorsFile> base, open_if_there(kBaseFile));
  TY_ASSIGN_OR_RETURN(weights::SafetensorsFile model, OpenTensors(store, uri, kModelFile));
  TY_ASSIGN_OR_RETURN(weights::SafetensorsFile optimizer, OpenTensors(store, uri, kOptimizerFile));
  return Checkpoint{.uri = uri,
                    .step = manifest.step,
                    .weights_sha256 = manifest.weights_sha256,
                    .manifest_sha256 = manifest.sha256,
                    .metrics = manifest.metrics,
                    .arithmetic = manifest.arithmetic,
                    .run = std::move(state.run),
                    .config = *std::move(config),
                    .tokenizer = std::move(tokenizer),
                    .model = std::move(model),
                    .optimizer = std::move(optimizer),
                    .ema = std::move(ema),
                    .adapter = std::move(adapter),
                    .base = std::move(base)};
}

absl::StatusOr<std::vector<int64_t>> ListSteps(ObjectStore& store, const std::string& root) {
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> names, store.List(root));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = ParseStepFolder(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<int64_t> BestStep(ObjectStore& store, const std::string& root) {
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(store, root));
  if (steps.empty()) return absl::NotFoundError(absl::StrCat(root, ": there is no checkpoint"));
  TY_ASSIGN_OR_RETURN(const StateFile newest,
                      ReadState(store, absl::StrCat(root, "/", StepFolder(steps.back()))));
  if (!newest.run.best.empty()) return newest.run.best[0].step;
  return absl::NotFoundError(
      absl::StrCat(root, ": no checkpoint is the best; that needs spec.checkpoint.best"));
}

}  // namespace trainyard::engine
