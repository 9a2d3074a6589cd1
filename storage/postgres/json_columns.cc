#include "storage/postgres/json_columns.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace trainyard::postgres {
namespace {

using Json = nlohmann::json;

}  // namespace

std::optional<FailureRecord> FailureIn(const pqxx::field& column) {
  if (column.is_null()) return std::nullopt;
  const Json json = Json::parse(column.c_str());
  return FailureRecord{.category = json.at("category"),
                       .message = json.at("message"),
                       .retryable = json.at("retryable"),
                       .rank = json.at("rank"),
                       .node = json.at("node"),
                       .rolled_back = json.value("rolled_back", false),  // absent in older rows
                       .had_restored = json.value("had_restored", false),
                       .counted = json.value("counted", false),
                       .has_state = json.value("has_state", false),
                       .left_state = json.value("left_state", false)};
}

std::optional<ResizeRecord> ResizeIn(const pqxx::field& column) {
  if (column.is_null()) return std::nullopt;
  const Json json = Json::parse(column.c_str());
  ResizeRecord resize{.attempt = json.at("attempt"),
                      .layout = json.value("layout", ""),                 // absent in older rows
                      .kept_step = json.value("kept_step", int64_t{0})};  // likewise
  for (const Json& rank : json.at("ranks")) {
    resize.ranks.push_back({rank.at("node"), rank.at("slots").get<std::vector<int>>()});
  }
  for (const Json& time : json.at("growths")) {
    resize.growths.push_back(absl::FromUnixMicros(time.get<int64_t>()));
  }
  return resize;
}

std::optional<std::string> FailureJson(const std::optional<FailureRecord>& failure) {
  if (!failure.has_value()) return std::nullopt;
  return Json{{"category", failure->category},
              {"message", failure->message},
              {"retryable", failure->retryable},
              {"rolled_back", failure->rolled_back},
              {"had_restored", failure->had_restored},
              {"counted", failure->counted},
              {"has_state", failure->has_state},
              {"left_state", failure->left_state},
              {"rank", failure->rank},
              {"node", failure->node}}
      .dump();
}

std::optional<std::string> ResizeJson(const std::optional<ResizeRecord>& resize) {
  if (!resize.has_value()) return std::nullopt;
  Json ranks = Json::array(), growths = Json::array();
  for (const RankSlots& rank : resize->ranks) {
    ranks.push_back({{"node", rank.node}, {"slots", rank.slots}});
  }
  for (const absl::Time time : resize->growths) growths.push_back(absl::ToUnixMicros(time));
  return Json{{"attempt", resize->attempt},
              {"ranks", ranks},
              {"layout", resize->layout},
              {"growths", growths},
              {"kept_step", resize->kept_step}}
      .dump();
}

}  // namespace trainyard::postgres
