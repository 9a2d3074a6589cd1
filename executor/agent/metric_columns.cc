#include "executor/agent/metric_columns.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace trainyard {
namespace {

// The values of a point in the order of columns, which is by name.
std::map<std::string, double> ValuesOf(const v1::MetricPoint& point) {
  return {point.values().begin(), point.values().end()};
}

// The columns that the next point may be added to, and what adding it requires.
struct OpenColumns {
  v1::MetricColumns* columns = nullptr;  // null: none
  int64_t next_sequence = 0;
  int64_t time_us = 0;
};

bool Continues(const OpenColumns& open, const v1::RankEvent& event,
               const std::map<std::string, double>& values) {
  if (open.columns == nullptr || event.sequence() != open.next_sequence ||
      event.metrics().split() != open.columns->split() ||
      values.size() != static_cast<size_t>(open.columns->columns_size())) {
    return false;
  }
  auto column = open.columns->columns().begin();
  return std::all_of(values.begin(), values.end(),
                     [&](const auto& value) { return (column++)->name() == value.first; });
}

}  // namespace

v1::EventBatch PackMetrics(v1::EventBatch batch) {
  v1::EventBatch packed;
  packed.mutable_key()->Swap(batch.mutable_key());
  OpenColumns open;
  for (v1::RankEvent& event : *batch.mutable_events()) {
    // A point without values is passed on as it is, for the server to refuse.
    if (!event.has_metrics() || event.metrics().values().empty()) {
      *packed.add_events() = std::move(event);
      open = {};
      continue;
    }
    const std::map<std::string, double> values = ValuesOf(event.metrics());
    if (!Continues(open, event, values)) {
      v1::RankEvent& begun = *packed.add_events();
      begun.set_sequence(event.sequence());
      begun.set_time_us(event.time_us());
      open = {.columns = begun.mutable_columns()};
      open.columns->set_split(event.metrics().split());
      for (const auto& [name, value] : values) open.columns->add_columns()->set_name(name);
    }
    open.columns->add_steps(event.metrics().step());
    // Modulo 2^64: a worker's clock may say anything.
    open.columns->add_time_deltas_us(static_cast<int64_t>(static_cast<uint64_t>(event.time_us()) -
                                                          static_cast<uint64_t>(open.time_us)));
    open.time_us = event.time_us();
    open.next_sequence = event.sequence() + 1;
    int at = 0;
    for (const auto& [name, value] : values) open.columns->mutable_columns(at++)->add_values(value);
  }
  return packed;
}

}  // namespace trainyard
