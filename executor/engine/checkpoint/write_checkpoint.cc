#include "executor/engine/checkpoint/write_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/manifest.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "executor/engine/finite.h"
#include "executor/weights/safetensors.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// Whether the manifest gets digests of the files, by which a reader finds out what is damaged.
enum class Digests { kTaken, kNone };

// A file of a staged folder whose size, and digest if one is wanted, are taken while it is written.
class DigestingWriter {
 public:
  static absl::StatusOr<DigestingWriter> Create(StagedFolder& folder, const std::string& name,
                                                Digests digests) {
    TY_ASSIGN_OR_RETURN(std::unique_ptr<ObjectWriter> writer, folder.Create(name));
    return DigestingWriter(std::move(writer), name, digests);
  }

  absl::Status Append(absl::string_view data) {
    if (sha_ != nullptr) sha_->Add(data);
    file_.bytes += static_cast<int64_t>(data.size());
    return writer_->Append(data);
  }

  absl::StatusOr<ManifestFile> Finish() {
    TY_RETURN_IF_ERROR(writer_->Finish());
    if (sha_ != nullptr) file_.sha256 = sha_->Finish();
    return file_;
  }

 private:
  DigestingWriter(std::unique_ptr<ObjectWriter> writer, const std::string& name, Digests digests)
      : writer_(std::move(writer)) {
    if (digests == Digests::kTaken) sha_ = std::make_unique<Sha256>();
    file_.name = name;
  }

  std::unique_ptr<ObjectWriter> writer_;
  std::unique_ptr<Sha256> sha_;  // null: none is taken
  ManifestFile file_;
};

absl::StatusOr<ManifestFile> WriteText(StagedFolder& folder, const std::string& name,
                                       absl::string_view text, Digests digests) {
  TY_ASSIGN_OR_RETURN(DigestingWriter writer, DigestingWriter::Create(folder, name, digests));
  TY_RETURN_IF_ERROR(writer.Append(text));
  return writer.Finish();
}

absl::StatusOr<ManifestFile> WriteTensors(StagedFolder& folder, const std::string& name,
                                          const std::map<std::string, TensorView>& tensors,
                                          Digests digests) {
  std::map<std::string, weights::TensorEntry> entries;
  for (const auto& [tensor, view] : tensors) {
    entries[tensor] = {.dtype = view.dtype, .shape = view.dims};
  }
  const weights::SafetensorsHeader header = weights::PackedHeader(std::move(entries));
  TY_ASSIGN_OR_RETURN(DigestingWriter writer, DigestingWriter::Create(folder, name, digests));
  TY_RETURN_IF_ERROR(writer.Append(weights::SafetensorsPrefix(header)));
  for (const std::string& tensor : weights::NamesByPlace(header)) {
    TY_RETURN_IF_ERROR(ForEachPiece(tensors.at(tensor),
                                    [&](absl::string_view bytes) { return writer.Append(bytes); }));
  }
  return writer.Finish();
}

std::string StateText(const CheckpointIdentity& identity, const CheckpointContent& content) {
  const v1::Training& training = identity.spec.training();
  return StateToJson(
      {.step = content.step,
       .seed = training.seed(),
       .spec_digest = identity.spec_digest,
       .next_sample = data::BatchOfStep(content.step, content.run.skips) * training.batch_size(),
       .run = content.run});
}

// Writes all files but the manifest and returns what it will say.
absl::StatusOr<Manifest> WriteFiles(StagedFolder& folder, const CheckpointIdentity& identity,
                                    const CheckpointContent& content, const Snapshot& snapshot,
                                    std::string weights, Digests digests) {
  Manifest manifest{.step = content.step,
                    .spec_digest = identity.spec_digest,
                    .weights_sha256 = std::move(weights),
                    .metrics = content.metrics,
                    .arithmetic = identity.arithmetic};
  const auto keep = [&](absl::StatusOr<ManifestFile> file) -> absl::Status {
    if (file.ok()) manifest.files.push_back(*std::move(file));
    return file.status();
  };
  const auto text = [&](const std::string& name, const std::string& content) {
    return keep(WriteText(folder, name, content, digests));
  };
  const auto tensors = [&](const char* name, const std::map<std::string, TensorView>& views) {
    return keep(WriteTensors(folder, name, views, digests));
  };
  TY_RETURN_IF_ERROR(text(kConfigFile, identity.config));
  TY_RETURN_IF_ERROR(tensors(kModelFile, snapshot.model()));
  if (!snapshot.ema().empty()) TY_RETURN_IF_ERROR(tensors(kEmaFile, snapshot.ema()));
  if (!snapshot.adapter().empty()) {
    TY_RETURN_IF_ERROR(text(kAdapterConfigFile, identity.adapter_config));
    TY_RETURN_IF_ERROR(tensors(kAdapterFile, snapshot.adapter()));
    TY_RETURN_IF_ERROR(tensors(kBaseFile, snapshot.base()));
  }
  for (const data::NamedText& file : identity.tokenizer) {
    TY_RETURN_IF_ERROR(text(file.name, file.text));
  }
  TY_RETURN_IF_ERROR(tensors(kOptimizerFile, snapshot.optimizer_state()));
  TY_RETURN_IF_ERROR(text(kStateFile, StateText(identity, content)));
  return manifest;
}

// The digest of the model's weights (Manifest::weights_sha256) over the tensors in order of their
// names: name, shape and bytes of each. Refuses a model that holds NaN or
// infinity: it is worth nothing to its users, nor to a run that would go back to it. Reads the
// model once: what ranks share out comes over the network.
absl::StatusOr<std::string> FiniteWeightsDigest(const std::map<std::string, TensorView>& model) {
  Sha256 sha;
  for (const auto& [name, tensor] : model) {
    sha.Add(absl::StrCat(name, " [", absl::StrJoin(tensor.dims, ","), "]\n"));
    const bool is_float = std::string(tensor.dtype) == "F32";
    int64_t before = 0;
    TY_RETURN_IF_ERROR(ForEachPiece(tensor, [&, &name = name](absl::string_view bytes) {
      sha.Add(bytes);
      if (!is_float) return absl::OkStatus();
      const auto* const values = reinterpret_cast<const float*>(bytes.data());
      const auto n = static_cast<int64_t>(bytes.size() / sizeof(float));
      const int64_t bad = ExtentOf(values, n).first_bad;
      before += n;
      if (bad < 0) return absl::OkStatus();
      return WithFault(Fault::kNumeric,
                       absl::OutOfRangeError(absl::StrCat("not written: element ", before - n + bad,
                                                          " of \"", name, "\" is ", values[bad])));
    }));
  }
  return sha.Finish();
}

// What is in the checkpoint's place.
struct Present {
  bool any = false;
  std::optional<WrittenCheckpoint> kept;  // the checkpoint there, if it may stay
};

absl::StatusOr<Present> LookAt(ObjectStore& store, const CheckpointIdentity& identity,
                               const CheckpointContent& content, const std::string& uri,
                               const std::string& weights) {
  absl::StatusOr<Manifest> manifest = ReadVerifiedManifest(store, uri, "");
  if (absl::IsNotFound(manifest.status())) return Present{};
  if (absl::IsDataLoss(manifest.status())) return Present{.any = true};
  if (!manifest.ok()) return manifest.status();
  if (manifest->spec_digest != identity.spec_digest) {
    return absl::FailedPreconditionError(
        absl::StrCat(uri, ": a checkpoint of another spec is there; it was left as it is"));
  }
  const std::string state = Sha256Hex(StateText(identity, content));
  const bool same = std::any_of(
      manifest->files.begin(), manifest->files.end(),
      [&](const ManifestFile& file) { return file.name == kStateFile && file.sha256 == state; });
  if (!same) return Present{.any = true};
  return Present{.any = true,
                 .kept = WrittenCheckpoint{.step = manifest->step,
                                           .uri = uri,
                                           .bytes = manifest->bytes(),
                                           .manifest_sha256 = manifest->sha256,
                                           .weights_sha256 = manifest->weights_sha256,
                                           .metrics = manifest->metrics,
                                           .other_weights = manifest->weights_sha256 != weights}};
}

}  // namespace

absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(ObjectStore& store,
                                                  const CheckpointIdentity& identity,
                                                  const CheckpointContent& content,
                                                  const Snapshot& snapshot,
                                                  absl::FunctionRef<absl::Status()> await_right) {
  TY_ASSIGN_OR_RETURN(const std::string weights, FiniteWeightsDigest(snapshot.model()));
  const std::string uri = absl::StrCat(identity.root, "/", StepFolder(content.step));
  TY_ASSIGN_OR_RETURN(const Present present, LookAt(store, identity, content, uri, weights));
  if (present.kept) return *present.kept;

  TY_ASSIGN_OR_RETURN(std::unique_ptr<StagedFolder> folder, store.Stage(uri, identity.tag));
  TY_ASSIGN_OR_RETURN(const Manifest manifest,
                      WriteFiles(*folder, identity, content, snapshot, weights, Digests::kTaken));
  const absl::Status verified =
      VerifyFiles(manifest, [&](const std::string& name) { return folder->Open(name); });
  if (!verified.ok()) return Annotate(verified, absl::StrCat(uri, ": read back"));

  TY_ASSIGN_OR_RETURN(const ManifestFile last,
                      WriteText(*folder, kManifestFile, ManifestToJson(manifest), Digests::kTaken));
  TY_RETURN_IF_ERROR(await_right());
  const absl::Status visible = present.any ? folder->Replace() : folder->Commit();
  if (absl::IsAlreadyExists(visible)) {  // another attempt was faster
    TY_ASSIGN_OR_RETURN(const Present now, LookAt(store, identity, content, uri, weights));
    if (now.kept) return *now.kept;
  }
  TY_RETURN_IF_ERROR(visible);
  return WrittenCheckpoint{.step = content.step,
                           .uri = uri,
                           .bytes = manifest.bytes(),
                           .manifest_sha256 = last.sha256,
                           .weights_sha256 = weights,
                           .metrics = content.metrics};
}

absl::Status PackCheckpoint(StagedFolder& folder, const CheckpointIdentity& identity,
                            const CheckpointContent& content, const Snapshot& snapshot) {
  TY_ASSIGN_OR_RETURN(const Manifest manifest, WriteFiles(folder, identity, content, snapshot,
                                                          /*weights=*/"", Digests::kNone));
  TY_RETURN_IF_ERROR(
      WriteText(folder, kManifestFile, ManifestToJson(manifest), Digests::kNone).status());
  return folder.Commit();
}

}  // namespace trainyard::engine
