#include "executor/engine/load_weights.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_join.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/manifest.h"
#include "executor/engine/fault.h"
#include "executor/engine/finite.h"
#include "executor/engine/initialize.h"
#include "executor/weights/start_weights.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kConvertedAtOnce = int64_t{1} << 20;  // elements
constexpr char kStartFile[] = "fine_tune_from.json";
constexpr int64_t kSmallFile = 4096;

absl::Status WithFolderFault(const absl::Status& status) {
  if (absl::IsUnimplemented(status)) return WithFault(Fault::kUnimplemented, status);
  return absl::IsInvalidArgument(status) ? WithFault(Fault::kSpec, status) : WithDataFault(status);
}

absl::StatusOr<weights::StartWeights> Open(const v1::JobSpec& spec, const plan::Plan& plan) {
  absl::StatusOr<weights::StartWeights> weights = weights::OpenStartWeights(spec, plan);
  if (!weights.ok()) return WithFolderFault(weights.status());
  return weights;
}

// If the folder is a checkpoint with its manifest, checks that the weights are as they were
// written.
absl::Status VerifyOurs(const weights::ModelFolder& folder) {
  const auto json = weights::ReadSmallFile(folder.path, kManifestFile);
  if (absl::IsNotFound(json.status())) return absl::OkStatus();
  TY_RETURN_IF_ERROR(json.status());
  const std::string place = absl::StrCat(folder.path, "/", kManifestFile);
  const absl::StatusOr<Manifest> manifest = ManifestFromJson(*json);
  if (!manifest.ok()) return Annotate(manifest.status(), place);
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, OpenObjectStore(folder.path));
  for (const ManifestFile& file : manifest->files) {
    if (file.name != kModelFile) continue;
    const absl::Status verified = VerifyFile(file, [&](const std::string& name) {
      return store->Open(absl::StrCat(folder.path, "/", name));
    });
    if (!verified.ok()) return Annotate(verified, folder.path);
  }
  return absl::OkStatus();
}

// Writes elements [first, first + chunk.size()) of a tensor where this rank hosts them.
void WriteInto(Session& session, const weights::ReadPart& part, int64_t first,
               absl::Span<const float> chunk, ParameterShares& shares) {
  constexpr int64_t kSize = sizeof(float);
  if (part.buffer != plan::kNone) {
    session.Write(part.buffer, chunk.data(), chunk.size() * kSize,
                  part.tensor.stored.offset + first * kSize);
    return;
  }
  const plan::Plan& plan = session.plan();
  plan::ForEachRun(part.tensor, first, static_cast<int64_t>(chunk.size()),
                   [&](const plan::ShardPiece& piece, int64_t offset, int64_t at, int64_t n) {
                     const plan::TensorId id = plan.of_group[piece.position];
                     if (!plan.host.hosts(plan.tensors[id])) return;
                     if (plan.RowsOf(id) != nullptr) {
                       return shares.WriteRows(id, offset, chunk.subspan(at, n));
                     }
                     session.Write(id, chunk.data() + at, n * kSize, offset * kSize);
                   });
}

// Reads one tensor of the folder into its places.
absl::Status ReadInto(Session& session, const weights::StartWeights& weights,
                      const weights::ReadPart& part, ParameterShares& shares, Sha256& sha) {
  std::vector<float> chunk;
  const plan::StoredTensor& stored = part.tensor.stored;
  const int64_t elements = stored.elements();
  sha.Add(absl::StrCat(stored.name, " [", absl::StrJoin(stored.dims, ","), "]\n"));
  for (int64_t first = 0; first < elements; first += kConvertedAtOnce) {
    const int64_t count = std::min(kConvertedAtOnce, elements - first);
    chunk.resize(static_cast<size_t>(count));
    TY_RETURN_IF_ERROR(weights.Read(part.found, first, count, chunk.data()));
    const Extent extent = ExtentOf(chunk.data(), count);
    if (extent.first_bad >= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "spec.fine_tune.from: ", weights.folder.path, ": element ", first + extent.first_bad,
          " of '", part.found, "' is ", chunk[static_cast<size_t>(extent.first_bad)],
          "; name a model that is whole, or reinitialize: ['", stored.name, "']"));
    }
    sha.Add(chunk.data(), chunk.size() * sizeof(float));
    WriteInto(session, part, first, chunk, shares);
    TY_RETURN_IF_ERROR(session.Synchronize());
  }
  return absl::OkStatus();
}

std::string SummaryOf(const weights::StartWeights& weights) {
  const std::vector<std::string>& drawn = weights.assignment.drawn;
  constexpr size_t kShown = 8;
  std::string summary = absl::StrCat("began with the weights of ", weights.folder.path, ": ",
                                     weights.assignment.read.size(), " tensors");
  if (drawn.empty()) return summary;
  const size_t shown = std::min(drawn.size(), kShown);
  absl::StrAppend(&summary, ", ", drawn.size(),
                  " drawn anew: ", absl::StrJoin(drawn.begin(), drawn.begin() + shown, ", "),
                  shown < drawn.size() ? ", ..." : "");
  return summary;
}

}  // namespace

absl::Status CheckStart(const v1::JobSpec& spec, const plan::Plan& plan,
                        const data::Dataset& dataset) {
  TY_ASSIGN_OR_RETURN(const weights::StartWeights weights, Open(spec, plan));
  return WithFault(Fault::kSpec, weights::CheckTokenizer(weights, spec, plan, dataset.tokenizer()));
}

absl::StatusOr<LoadedWeights> LoadWeights(Session& session, const v1::JobSpec& spec) {
  TY_ASSIGN_OR_RETURN(const weights::StartWeights weights, Open(spec, session.plan()));
  TY_RETURN_IF_ERROR(WithDataFault(VerifyOurs(weights.folder)));
  TY_RETURN_IF_ERROR(WithDataFault(weights::CheckTies(weights, INT64_MAX)));
  ParameterShares shares(session);
  // Tensors are drawn first and then overwritten by what is read: one may have parts of both kinds.
  for (const plan::TensorId id : weights.assignment.drawn_whose) {
    TY_RETURN_IF_ERROR(InitializeParameter(session, id, spec.training().seed(), shares));
  }
  Sha256 sha;
  for (const weights::ReadPart& part : weights.assignment.read) {
    TY_RETURN_IF_ERROR(WithDataFault(ReadInto(session, weights, part, shares, sha)));
    for (const plan::ShardPiece& piece : part.tensor.pieces) {
      if (!session.plan().parameters_sharded) break;
      TY_CHECK(piece.cols == piece.stride, part.tensor.stored.name, " is cut");
      shares.Keep(session.plan().of_group[piece.position], piece.offset, piece.rows * piece.cols);
    }
  }
  return LoadedWeights{.sha256 = sha.Finish(), .summary = SummaryOf(weights)};
}

absl::Status CheckSameStart(const std::string& before, const LoadedWeights& loaded) {
  if (before.empty() || before == loaded.sha256) return absl::OkStatus();
  return WithFault(
      Fault::kData,
      absl::FailedPreconditionError(absl::StrCat(
          "spec.fine_tune.from: holds other weights than when this job began (SHA-256 ",
          loaded.sha256, ", was ", before,
          "), and there is no checkpoint to go on from; put them back, or submit a new job")));
}

absl::Status KeepStart(ObjectStore& store, const std::string& root, int64_t attempt,
                       const std::string& spec_digest, const LoadedWeights& loaded) {
  const std::string place = absl::StrCat(root, "/", kStartFile);
  if (attempt > 1) {
    const absl::StatusOr<std::string> text = store.Get(place, kSmallFile);
    if (!text.ok() && !absl::IsNotFound(text.status()))
      return WithFault(Fault::kStorage, text.status());
    const nlohmann::json before =
        nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
    if (before.is_object() && before.value("spec_digest", nlohmann::json()) == spec_digest) {
      const nlohmann::json digest = before.value("weights_sha256", nlohmann::json());
      return CheckSameStart(digest.is_string() ? digest.get<std::string>() : "", loaded);
    }
  }
  const nlohmann::ordered_json now = {{"spec_digest", spec_digest},
                                      {"weights_sha256", loaded.sha256}};
  return WithFault(Fault::kStorage, store.Put(place, now.dump(2) + "\n"));
}

}  // namespace trainyard::engine
