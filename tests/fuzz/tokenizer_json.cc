// tokenizer.json, as it is and as a patch (RFC 7396) on a good one: what is accepted encodes text
// to ids of its own that spell the text.

#include "executor/data/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "executor/data/tokenizer/bpe_trainer.h"
#include "storage/base/status.h"

namespace trainyard::data {
namespace {

void Use(const std::string& json) {
  const absl::StatusOr<std::unique_ptr<const Bpe>> bpe = BpeFromJson(json);
  if (!bpe.ok()) return;
  for (const std::string& text : {std::string("ab abc  \xE4\xB8\xAD's 123\n\n<a>"), json}) {
    const absl::StatusOr<std::vector<int32_t>> ids = (*bpe)->Encode(text);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) TY_CHECK(id >= 0 && id < (*bpe)->size(), id);
    if (!(*bpe)->model().add_prefix_space) TY_CHECK((*bpe)->Decode(*ids) == text, text);
  }
}

}  // namespace
}  // namespace trainyard::data

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using nlohmann::json;
  using namespace trainyard::data;
  static const json kGood = json::parse(BpeToJson(TrainBpe("ab ab ab abc", 300).value()));
  const std::string text(reinterpret_cast<const char*>(data), size);
  Use(text);
  const json patch = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!patch.is_object()) return 0;
  json patched = kGood;
  patched.merge_patch(patch);
  Use(patched.dump(-1, ' ', false, json::error_handler_t::replace));
  return 0;
}
