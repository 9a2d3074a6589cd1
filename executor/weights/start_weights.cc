#include "executor/weights/start_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "executor/data/tokenizer/tokenizer_files.h"
#include "executor/plan/spec/spec.h"
#include "executor/weights/configuration.h"
#include "executor/weights/element_types.h"
#include "executor/weights/suggestions.h"
#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

constexpr char kField[] = "spec.fine_tune.from";
constexpr int64_t kChunk = int64_t{1} << 18;  // elements compared at a time

// How many elements of tied tensors OpenStartWeights compares: two that differ rarely begin alike.
constexpr int64_t kBeginning = kChunk;

int64_t ElementsOf(const TensorEntry& entry) { return entry.bytes() / FloatBytes(entry.dtype); }

}  // namespace

absl::Status StartWeights::Read(const std::string& found, int64_t first, int64_t count,
                                float* to) const {
  const FolderTensor& tensor = folder.tensors.at(found);
  const int64_t size = FloatBytes(tensor.entry.dtype);
  std::vector<char> bytes(static_cast<size_t>(count * size));
  const absl::Status read =
      folder.files[tensor.file].Read(tensor.entry, first * size, bytes.size(), bytes.data());
  if (!read.ok()) return Annotate(read, kField);
  ToF32(tensor.entry.dtype, bytes.data(), count, to);
  return absl::OkStatus();
}

absl::Status CheckTies(const StartWeights& weights, int64_t most) {
  std::vector<float> a, b;
  for (const Tie& tie : weights.assignment.ties) {
    const int64_t n = std::min(most, ElementsOf(weights.folder.tensors.at(tie.found).entry));
    for (int64_t first = 0; first < n; first += kChunk) {
      const int64_t count = std::min(kChunk, n - first);
      a.resize(static_cast<size_t>(count));
      b.resize(static_cast<size_t>(count));
      TY_RETURN_IF_ERROR(weights.Read(tie.found, first, count, a.data()));
      TY_RETURN_IF_ERROR(weights.Read(tie.same_as, first, count, b.data()));
      const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin());
      if (at == a.end()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          kField, ": ", weights.folder.path, ": ", Quoted(tie.found), " and ", Quoted(tie.same_as),
          " differ (", *at, " and ", *other, " at element ", first + (at - a.begin()),
          "), but spec.model has them once; set tie_embeddings: false where the family has it"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StartWeights> OpenStartWeights(const v1::JobSpec& spec, const plan::Plan& plan) {
  const v1::FineTune& fine_tune = spec.fine_tune();
  StartWeights weights;
  absl::StatusOr<ModelFolder> folder = OpenModelFolder(fine_tune.from());
  if (!folder.ok()) return Annotate(folder.status(), kField);
  weights.folder = *std::move(folder);
  TY_RETURN_IF_ERROR(CheckConfiguration(absl::StrCat(weights.folder.path, "/", kConfigurationFile),
                                        weights.folder.configuration, spec, plan));
  TY_ASSIGN_OR_RETURN(weights.assignment, AssignNames(fine_tune, plan::FamilyOf(spec.model()), plan,
                                                      weights.folder.tensors));
  TY_RETURN_IF_ERROR(CheckTies(weights, kBeginning));
  return weights;
}

bool KeepsTokens(const StartWeights& weights, const v1::JobSpec& spec, const plan::Plan& plan) {
  const std::string embedding = TokenEmbeddingOf(plan);
  return spec.data().has_text() && IsOurs(weights.folder.configuration) &&
         (embedding.empty() || !IsReinitialized(spec.fine_tune(), embedding));
}

absl::Status CheckTokenizer(const StartWeights& weights, const v1::JobSpec& spec,
                            const plan::Plan& plan, const data::Tokenizer* tokenizer) {
  if (tokenizer == nullptr || !KeepsTokens(weights, spec, plan)) return absl::OkStatus();
  const absl::StatusOr<data::NamedText> theirs = data::FindTokenizerFile(weights.folder.path);
  if (absl::IsNotFound(theirs.status())) return absl::OkStatus();
  if (!theirs.ok()) return absl::InvalidArgumentError(theirs.status().message());
  if (tokenizer->Files()[0].text == theirs->text) return absl::OkStatus();
  const std::string embedding = TokenEmbeddingOf(plan);
  const std::string advice =
      embedding.empty() ? "" : absl::StrCat(", or reinitialize: ['", embedding, "']");
  return absl::InvalidArgumentError(absl::StrCat(
      "spec.data.text.tokenizer: ", v1::TextData::Tokenizer_Name(spec.data().text().tokenizer()),
      " gives other tokens than ", theirs->name, " of ", weights.folder.path,
      ", which its weights were trained on; set tokenizer: FROM_CHECKPOINT", advice));
}

}  // namespace trainyard::weights
