// Fine-tuning: where the weights come from, and which of them are trained.

#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/data.h"
#include "storage/base/status.h"

namespace trainyard::plan {
namespace {

constexpr int kMostPatterns = 100;
constexpr int64_t kMostRank = 1024;

template <typename Patterns>
absl::Status CheckPatterns(const std::string& field, const Patterns& patterns) {
  if (patterns.size() > kMostPatterns) {
    return Invalid(field, patterns.size(), " patterns are more than ", kMostPatterns);
  }
  for (int i = 0; i < patterns.size(); ++i) {
    const std::string at = absl::StrCat(field, "[", i, "]");
    if (patterns.Get(i).empty()) return Invalid(at, "is empty; name tensors, or leave it out");
    if (patterns.Get(i).size() > kLongestPattern) {
      return Invalid(at, patterns.Get(i).size(), " bytes are more than ", kLongestPattern);
    }
  }
  return absl::OkStatus();
}

absl::Status ResolveLora(v1::Lora& lora) {
  const std::string at = "spec.fine_tune.lora.";
  TY_RETURN_IF_ERROR(CheckRange(at + "rank", lora.rank(), 1, kMostRank));
  if (!lora.has_alpha()) lora.set_alpha(lora.rank());
  TY_RETURN_IF_ERROR(CheckPositive(at + "alpha", lora.alpha()));
  TY_RETURN_IF_ERROR(CheckPatterns(at + "targets", lora.targets()));
  TY_RETURN_IF_ERROR(CheckPatterns(at + "also_train", lora.also_train()));
  return CheckFraction(at + "dropout", lora.dropout());
}

}  // namespace

absl::Status ResolveFineTune(v1::FineTune& fine_tune) {
  const std::string at = "spec.fine_tune.";
  if (fine_tune.has_lora()) TY_RETURN_IF_ERROR(ResolveLora(*fine_tune.mutable_lora()));
  if (!fine_tune.from().empty()) {
    TY_RETURN_IF_ERROR(CheckUri(at + "from", fine_tune.from()));
    TY_RETURN_IF_ERROR(CheckPatterns(at + "reinitialize", fine_tune.reinitialize()));
    return CheckPatterns(at + "ignore", fine_tune.ignore());
  }
  if (fine_tune.reinitialize_size() > 0) {
    return Invalid(at + "reinitialize", "all weights are drawn without from; leave it out");
  }
  if (fine_tune.ignore_size() > 0) {
    return Invalid(at + "ignore", "there is nothing to ignore without from; leave it out");
  }
  if (fine_tune.has_lora()) return absl::OkStatus();
  return Invalid("spec.fine_tune", "says nothing; set from or lora, or leave it out");
}

absl::Status ResolveStartTokenizer(const v1::FineTune& fine_tune, v1::Data& data) {
  if (!data.has_text() || data.text().tokenizer() != v1::TextData::FROM_CHECKPOINT) {
    return absl::OkStatus();
  }
  v1::TextData& text = *data.mutable_text();
  const std::string at = "spec.data.text.";
  if (fine_tune.from().empty()) {
    return Invalid(at + "tokenizer",
                   "FROM_CHECKPOINT takes that of spec.fine_tune.from, which is not set");
  }
  if (!text.tokenizer_file().empty() && text.tokenizer_file() != fine_tune.from()) {
    return Invalid(at + "tokenizer_file",
                   "FROM_CHECKPOINT reads that of spec.fine_tune.from; leave "
                   "it out, or set tokenizer: BPE");
  }
  text.set_tokenizer_file(fine_tune.from());
  return absl::OkStatus();
}

}  // namespace trainyard::plan
