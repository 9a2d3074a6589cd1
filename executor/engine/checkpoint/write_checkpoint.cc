#include "executor/engine/checkpoint/write_checkpoint.h"

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/manifest.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/safetensors.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// A file of a staged folder whose size and digest are taken while it is written.
class DigestingWriter {
 public:
  static absl::StatusOr<DigestingWriter> Create(StagedFolder& folder, const std::string& name) {
    TY_ASSIGN_OR_RETURN(std::unique_ptr<ObjectWriter> writer, folder.Create(name));
    return DigestingWriter(std::move(writer), name);
  }

  absl::Status Append(absl::string_view data) {
    sha_->Add(data);
    file_.bytes += static_cast<int64_t>(data.size());
    return writer_->Append(data);
  }

  absl::StatusOr<ManifestFile> Finish() {
    TY_RETURN_IF_ERROR(writer_->Finish());
    file_.sha256 = sha_->Finish();
    return file_;
  }

 private:
  DigestingWriter(std::unique_ptr<ObjectWriter> writer, const std::string& name)
      : writer_(std::move(writer)), sha_(std::make_unique<Sha256>()) {
    file_.name = name;
  }

  std::unique_ptr<ObjectWriter> writer_;
  std::unique_ptr<Sha256> sha_;
  ManifestFile file_;
};

absl::StatusOr<ManifestFile> WriteText(StagedFolder& folder, const std::string& name,
                                       absl::string_view text) {
  TY_ASSIGN_OR_RETURN(DigestingWriter writer, DigestingWriter::Create(folder, name));
  TY_RETURN_IF_ERROR(writer.Append(text));
  return writer.Finish();
}

absl::StatusOr<ManifestFile> WriteTensors(StagedFolder& folder, const std::string& name,
                                          const std::map<std::string, TensorView>& tensors) {
  std::map<std::string, TensorEntry> entries;
  for (const auto& [tensor, view] : tensors) {
    entries[tensor] = {.dtype = view.dtype, .shape = view.dims};
  }
  const SafetensorsHeader header = PackedHeader(std::move(entries));
  TY_ASSIGN_OR_RETURN(DigestingWriter writer, DigestingWriter::Create(folder, name));
  TY_RETURN_IF_ERROR(writer.Append(SafetensorsPrefix(header)));
  for (const std::string& tensor : NamesByPlace(header)) {
    TY_RETURN_IF_ERROR(writer.Append(tensors.at(tensor).bytes));
  }
  return writer.Finish();
}

std::string StateJson(const CheckpointIdentity& identity, int64_t step) {
  const nlohmann::ordered_json json = {{"step", step},
                                       {"seed", identity.seed},
                                       {"spec_digest", identity.spec_digest},
                                       {"next_sample", step * identity.batch_size}};
  return json.dump(2) + "\n";
}

// Writes all files but the manifest and returns what it will say.
absl::StatusOr<Manifest> WriteFiles(StagedFolder& folder, const CheckpointIdentity& identity,
                                    const Snapshot& snapshot, int64_t step, std::string weights) {
  Manifest manifest{
      .step = step, .spec_digest = identity.spec_digest, .weights_sha256 = std::move(weights)};
  const auto add = [&](absl::StatusOr<ManifestFile> file) -> absl::Status {
    if (file.ok()) manifest.files.push_back(*std::move(file));
    return file.status();
  };
  TY_RETURN_IF_ERROR(add(WriteText(folder, kConfigFile, identity.config)));
  TY_RETURN_IF_ERROR(add(WriteTensors(folder, kModelFile, snapshot.model())));
  if (!snapshot.ema().empty()) {
    TY_RETURN_IF_ERROR(add(WriteTensors(folder, kEmaFile, snapshot.ema())));
  }
  for (const data::NamedText& file : identity.tokenizer) {
    TY_RETURN_IF_ERROR(add(WriteText(folder, file.name, file.text)));
  }
  TY_RETURN_IF_ERROR(add(WriteTensors(folder, kOptimizerFile, snapshot.optimizer_state())));
  TY_RETURN_IF_ERROR(add(WriteText(folder, kStateFile, StateJson(identity, step))));
  return manifest;
}

// The checkpoint that is there already, if it may stay; nullopt: there is none (any more).
absl::StatusOr<std::optional<WrittenCheckpoint>> KeepExisting(ObjectStore& store,
                                                              const CheckpointIdentity& identity,
                                                              const std::string& uri,
                                                              const std::string& weights) {
  absl::StatusOr<Manifest> manifest = ReadVerifiedManifest(store, uri, "");
  if (absl::IsNotFound(manifest.status())) return std::nullopt;
  if (absl::IsDataLoss(manifest.status())) {
    TY_RETURN_IF_ERROR(store.Delete(uri));
    return std::nullopt;
  }
  if (!manifest.ok()) return manifest.status();
  if (manifest->spec_digest != identity.spec_digest) {
    return absl::FailedPreconditionError(
        absl::StrCat(uri, ": a checkpoint of another spec is there; it was left as it is"));
  }
  return WrittenCheckpoint{.step = manifest->step,
                           .uri = uri,
                           .bytes = manifest->bytes(),
                           .manifest_sha256 = manifest->sha256,
                           .weights_sha256 = manifest->weights_sha256,
                           .other_weights = manifest->weights_sha256 != weights};
}

}  // namespace

absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(ObjectStore& store,
                                                  const CheckpointIdentity& identity,
                                                  const Snapshot& snapshot, int64_t step) {
  const std::string uri = absl::StrCat(identity.root, "/", StepFolder(step));
  const std::string weights = WeightsDigest(snapshot.model());
  TY_ASSIGN_OR_RETURN(std::optional<WrittenCheckpoint> existing,
                      KeepExisting(store, identity, uri, weights));
  if (existing) return *existing;

  TY_ASSIGN_OR_RETURN(std::unique_ptr<StagedFolder> folder, store.Stage(uri, identity.tag));
  TY_ASSIGN_OR_RETURN(const Manifest manifest,
                      WriteFiles(*folder, identity, snapshot, step, weights));
  const absl::Status verified =
      VerifyFiles(manifest, [&](const std::string& name) { return folder->Open(name); });
  if (!verified.ok()) return Annotate(verified, absl::StrCat(uri, ": read back"));

  const std::string json = ManifestToJson(manifest);
  TY_ASSIGN_OR_RETURN(std::unique_ptr<ObjectWriter> last, folder->Create(kManifestFile));
  TY_RETURN_IF_ERROR(last->Append(json));
  TY_RETURN_IF_ERROR(last->Finish());
  TY_RETURN_IF_ERROR(folder->Commit());
  return WrittenCheckpoint{.step = step,
                           .uri = uri,
                           .bytes = manifest.bytes(),
                           .manifest_sha256 = Sha256Hex(json),
                           .weights_sha256 = weights};
}

}  // namespace trainyard::engine
