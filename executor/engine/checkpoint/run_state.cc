#include "executor/engine/checkpoint/run_state.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMost = int64_t{1} << 56;         // samples of a run
constexpr int64_t kMostBatches = int64_t{1} << 38;  // left out; times the largest batch: below 2^63
constexpr size_t kLongestList = 1000;               // max_rollbacks; checkpoint.best.keep is less

Json ToJson(const Score& score) { return {{"step", score.step}, {"value", score.value}}; }

// Fails like the accessors of Json: by an exception, which StateFromJson turns into a status.
[[noreturn]] void Refuse(const std::string& why) { throw std::out_of_range(why); }

int64_t CountAt(const Json& json, const char* key, int64_t least) {
  const auto value = json.at(key).get<int64_t>();
  if (value < least || value > kMost) Refuse(absl::StrCat(key, " ", value, " is out of range"));
  return value;
}

Score ScoreFrom(const Json& json) {
  return {.step = CountAt(json, "step", 1), .value = json.at("value").get<double>()};
}

const Json& ListAt(const Json& json, const char* key) {
  static const Json& empty = *new Json(Json::array());
  if (!json.contains(key)) return empty;
  const Json& list = json.at(key);
  if (!list.is_array() || list.size() > kLongestList) {
    Refuse(absl::StrCat(key, " is no list of at most ", kLongestList));
  }
  return list;
}

LossScale LossScaleFrom(const Json& json, int64_t step) {
  const LossScale scale{.scale = json.at("scale").get<float>(),
                        .good_steps = CountAt(json, "good_steps", 0),
                        .skipped = CountAt(json, "skipped_steps", 0)};
  if (!(std::isfinite(scale.scale) && scale.scale > 0)) {
    Refuse(absl::StrCat("loss_scale.scale is ", scale.scale));
  }
  if (scale.good_steps + scale.skipped > step) {
    Refuse(absl::StrCat("loss_scale counts ", scale.good_steps, " good and ", scale.skipped,
                        " skipped of ", step, " steps"));
  }
  return scale;
}

RunState RunStateFrom(const Json& json, int64_t step) {
  RunState run;
  if (json.contains("rollbacks")) run.rollbacks = CountAt(json, "rollbacks", 0);
  for (const Json& skip : ListAt(json, "skips")) {
    run.skips.push_back({.step = CountAt(skip, "step", 0), .batches = CountAt(skip, "batches", 1)});
  }
  if (data::BatchOfStep(INT32_MAX, run.skips) > kMostBatches) Refuse("too much data is left out");
  for (const Json& score : ListAt(json, "best")) run.best.push_back(ScoreFrom(score));
  if (json.contains("early_stopping")) {
    const Json& stopping = json.at("early_stopping");
    run.early_stopping.waited = CountAt(stopping, "waited", 0);
    if (stopping.contains("best")) run.early_stopping.best = ScoreFrom(stopping.at("best"));
  }
  if (json.contains("unevaluated")) run.unevaluated = json.at("unevaluated").get<bool>();
  if (json.contains("start_sha256")) run.start_sha256 = json.at("start_sha256").get<std::string>();
  if (json.contains("loss_scale")) run.loss_scale = LossScaleFrom(json.at("loss_scale"), step);
  return run;
}

}  // namespace

// What a run does not use is left out.
std::string StateToJson(const StateFile& state) {
  Json json = {{"step", state.step},
               {"seed", state.seed},
               {"spec_digest", state.spec_digest},
               {"next_sample", state.next_sample}};
  if (state.run.rollbacks > 0) json["rollbacks"] = state.run.rollbacks;
  for (const data::Skip& skip : state.run.skips) {
    json["skips"].push_back({{"step", skip.step}, {"batches", skip.batches}});
  }
  const EarlyStoppingState& stopping = state.run.early_stopping;
  if (stopping != EarlyStoppingState{}) {
    json["early_stopping"]["waited"] = stopping.waited;
    if (stopping.best) json["early_stopping"]["best"] = ToJson(*stopping.best);
  }
  for (const Score& score : state.run.best) json["best"].push_back(ToJson(score));
  if (const std::optional<LossScale>& scale = state.run.loss_scale) {
    json["loss_scale"] = {{"scale", scale->scale},
                          {"good_steps", scale->good_steps},
                          {"skipped_steps", scale->skipped}};
  }
  if (state.run.unevaluated) json["unevaluated"] = true;
  if (!state.run.start_sha256.empty()) json["start_sha256"] = state.run.start_sha256;
  return json.dump(2) + "\n";
}

absl::StatusOr<StateFile> StateFromJson(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    const int64_t step = CountAt(json, "step", 0);
    return StateFile{.step = step,
                     .seed = json.at("seed").get<uint64_t>(),
                     .spec_digest = json.at("spec_digest").get<std::string>(),
                     .next_sample = CountAt(json, "next_sample", 0),
                     .run = RunStateFrom(json, step)};
  } catch (const std::exception& e) {  // of Json, or of Refuse
    return absl::DataLossError(e.what());
  }
}

}  // namespace trainyard::engine
