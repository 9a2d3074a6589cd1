// Byte-level BPE of any text: it is refused or comes back whole, under both ways to cut it, and
// each word is merged as the definition says, one pair after the other.

#include "executor/data/tokenizer/bpe.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "executor/data/tokenizer/bpe_trainer.h"
#include "storage/base/status.h"

namespace trainyard::data {
namespace {

using Ranks = absl::flat_hash_map<std::pair<int32_t, int32_t>, size_t>;

Ranks RanksOf(const BpeModel& model) {
  Ranks ranks;
  for (size_t i = 0; i < model.merges.size(); ++i) {
    ranks.try_emplace({model.merges[i].left, model.merges[i].right}, i);
  }
  return ranks;
}

// The lowest rank first, of equals the leftmost: a pass over the word for each merge.
std::vector<int32_t> MergedPlainly(const BpeModel& model, const Ranks& ranks,
                                   absl::string_view word) {
  std::vector<int32_t> ids;
  for (const char byte : word) ids.push_back(model.byte_ids[static_cast<unsigned char>(byte)]);
  for (;;) {
    size_t best = model.merges.size(), place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == model.merges.size()) return ids;
    ids[place] = model.merges[best].whole;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

}  // namespace
}  // namespace trainyard::data

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard::data;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const bool utf8 = CheckUtf8(text).ok();
  const absl::StatusOr<BpeModel> trained = TrainBpe(text.substr(0, text.size() / 2), 300);
  TY_CHECK(trained.ok() || !CheckUtf8(text.substr(0, text.size() / 2)).ok(), "training");
  if (!trained.ok()) return 0;
  const Ranks ranks = RanksOf(*trained);
  for (const WordPattern pattern :
       {WordPattern::kGpt2, WordPattern::kLlama3, WordPattern::kWhole}) {
    BpeModel model = *trained;
    model.pattern = pattern;
    const Bpe bpe(model, "");
    const absl::StatusOr<std::vector<int32_t>> ids = bpe.Encode(text);
    TY_CHECK(ids.ok() == utf8, "encoding");
    if (!utf8) continue;
    TY_CHECK(bpe.Decode(*ids) == std::string(text), "decoding");
    std::vector<int32_t> plain;
    for (size_t at = 0; at < text.size();) {
      const size_t end = WordEnd(text, at, pattern);
      TY_CHECK(end > at && end <= text.size(), end);
      const std::vector<int32_t> word = MergedPlainly(model, ranks, text.substr(at, end - at));
      plain.insert(plain.end(), word.begin(), word.end());
      at = end;
    }
    TY_CHECK(*ids == plain, "merging");
  }
  return 0;
}
