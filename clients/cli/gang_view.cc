#include "clients/cli/gang_view.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "clients/cli/format.h"
#include "clients/cli/shown.h"
#include "clients/cli/table.h"

namespace trainyard::cli {
namespace {

// Neighbours in a table of ranks.
struct RankGroup {
  const v1::Gang::Rank* first = nullptr;
  const v1::Gang::Rank* last = nullptr;
  std::vector<int> slots;
  google::protobuf::Timestamp heard;
};

bool SameLine(const v1::Gang::Rank& a, const v1::Gang::Rank& b) {
  return a.node() == b.node() && a.state() == b.state() && a.outcome() == b.outcome() &&
         a.step() == b.step() && a.failure() == b.failure();
}

std::vector<RankGroup> GroupsOf(const v1::Gang& gang, bool wide) {
  std::vector<RankGroup> groups;
  for (const v1::Gang::Rank& rank : gang.ranks()) {
    if (wide || groups.empty() || !SameLine(*groups.back().last, rank)) {
      groups.push_back({.first = &rank, .heard = rank.last_heard_time()});
    }
    groups.back().last = &rank;
    groups.back().slots.insert(groups.back().slots.end(), rank.slots().begin(), rank.slots().end());
  }
  return groups;
}

// "3", "0-7"
std::string Span(int first, int last) {
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

// "0-3,6": in their order, runs of neighbours together.
std::string Spans(const std::vector<int>& numbers) {
  std::vector<std::string> spans;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    spans.push_back(Span(numbers[i], numbers[end - 1]));
    i = end;
  }
  return absl::StrJoin(spans, ",");
}

std::string StateOf(const v1::Gang::Rank& rank) {
  const std::string state = v1::Gang::Rank::State_Name(rank.state());
  return rank.outcome().empty() ? state : rank.outcome();
}

std::optional<double> ValueOf(const v1::MetricPoint& point, const std::string& name) {
  const auto found = point.values().find(name);
  if (found == point.values().end()) return std::nullopt;
  return found->second;
}

std::string Milliseconds(const v1::MetricPoint& point, const std::string& name) {
  const std::optional<double> value = ValueOf(point, name);
  return value.has_value() ? absl::StrFormat("%.1f", *value) : "";
}

std::string Bytes(const v1::MetricPoint& point, const std::string& name) {
  const std::optional<double> value = ValueOf(point, name);
  if (!value.has_value() || !(*value >= 0 && *value < 0x1p62)) return "";
  return FormatBytes(static_cast<int64_t>(*value));
}

// A number of a rank, of ranks, or of values; -1: there is none, or it is none.
int Number(const v1::MetricPoint& point, const std::string& name) {
  const double value = ValueOf(point, name).value_or(-1);
  return value >= 0 && value < 1e6 ? static_cast<int>(value) : -1;
}

std::string NodeOf(const std::map<int, std::string>& nodes, int rank) {
  const auto found = nodes.find(rank);
  return found == nodes.end() ? "" : found->second;
}

std::string RanksOneByOne(const Terminal& terminal, const v1::MetricPoint& point,
                          const std::map<int, std::string>& nodes) {
  Table table({"RANK", "NODE", "STEP MS", "COMPUTES", "WAITS", "MEMORY"});
  for (const int column : {0, 2, 3, 4, 5}) table.AlignRight(column);
  const int count = Number(point, "ranks.count");
  for (int rank = 0; rank < count; ++rank) {
    const std::string of = absl::StrCat("rank.", rank, ".");
    const std::optional<double> compute = ValueOf(point, of + "compute_ms");
    const std::optional<double> wait = ValueOf(point, of + "wait_ms");
    const bool whole = compute.has_value() && wait.has_value();
    table.Add({absl::StrCat(rank), NodeOf(nodes, rank),
               whole ? absl::StrFormat("%.1f", *compute + *wait) : "",
               Milliseconds(point, of + "compute_ms"), Milliseconds(point, of + "wait_ms"),
               Bytes(point, of + "memory_bytes")});
  }
  return table.Render(terminal);
}

std::string RanksTogether(const Terminal& terminal, const v1::MetricPoint& point,
                          const std::map<int, std::string>& nodes) {
  Table table({"", "COMPUTES MS", "WAITS MS", "MEMORY"});
  for (const int column : {1, 2, 3}) table.AlignRight(column);
  for (const auto& [title, which] :
       {std::pair("least", "min"), std::pair("median", "median"), std::pair("most", "max")}) {
    table.Add({title, Milliseconds(point, absl::StrCat("ranks.compute_ms.", which)),
               Milliseconds(point, absl::StrCat("ranks.wait_ms.", which)),
               Bytes(point, absl::StrCat("ranks.memory_bytes.", which))});
  }
  std::vector<std::string> row = {"most: rank"};
  for (const char* name : {"compute_ms", "wait_ms", "memory_bytes"}) {
    const int rank = Number(point, absl::StrCat("ranks.", name, ".max_rank"));
    const std::string node = NodeOf(nodes, rank);
    row.push_back(rank < 0 ? "" : absl::StrCat(rank, node.empty() ? "" : " on ", node));
  }
  table.Add(std::move(row));
  return table.Render(terminal);
}

}  // namespace

std::string RenderGang(const Terminal& terminal, const v1::Gang& raw, bool wide, absl::Time now) {
  const v1::Gang gang = Shown(raw);
  Table table({"NODE", "RANKS", "SLOTS", "STATE", "STEP", "HEARD", ""});
  table.AlignRight(4);
  for (const RankGroup& group : GroupsOf(gang, wide)) {
    const v1::Gang::Rank& rank = *group.first;
    const bool heard = group.heard.seconds() > 0;
    table.Add({LastSegment(rank.node()), Span(rank.rank(), group.last->rank()), Spans(group.slots),
               StateOf(rank),
               rank.state() == v1::Gang::Rank::RUNNING ? FormatCount(rank.step()) : "-",
               heard ? FormatAge(std::max(absl::ZeroDuration(), now - TimeOf(group.heard))) + " ago"
                     : "-",
               rank.failure().substr(0, rank.failure().find('\n'))});
  }
  return table.Render(terminal);
}

bool TellsOfRanks(absl::string_view name) {
  return absl::StartsWith(name, "rank.") || absl::StartsWith(name, "ranks.");
}

bool HasRanks(const v1::MetricPoint& point) { return Number(point, "ranks.count") > 0; }

std::map<int, std::string> NodesByRank(const v1::Gang& gang) {
  std::map<int, std::string> nodes;
  for (const v1::Gang::Rank& rank : gang.ranks()) {
    nodes[rank.rank()] = LastSegment(Shown(rank).node());
  }
  return nodes;
}

std::string RenderRanks(const Terminal& terminal, const v1::MetricPoint& point,
                        const std::map<int, std::string>& nodes) {
  const int count = Number(point, "ranks.count");
  std::string out = absl::StrCat("step ", FormatCount(point.step()), ", ", count, " ranks\n");
  const bool each = ValueOf(point, absl::StrCat("rank.", count - 1, ".compute_ms")).has_value();
  absl::StrAppend(
      &out, each ? RanksOneByOne(terminal, point, nodes) : RanksTogether(terminal, point, nodes));
  const std::string planned = Bytes(point, "ranks.planned_bytes.max");
  if (!planned.empty()) absl::StrAppend(&out, "planned memory: up to ", planned, " per rank\n");
  const int slowest = Number(point, "ranks.slowest");
  const std::string node = NodeOf(nodes, slowest);
  if (slowest >= 0) {
    absl::StrAppendFormat(&out, "slowest: rank %d%s%s, %.2f times the median for as much work\n",
                          slowest, node.empty() ? "" : " on ", node,
                          ValueOf(point, "ranks.slowest_ratio").value_or(1));
  }
  const int refused = Number(point, "ranks.refused");
  if (refused > 0) {
    absl::StrAppend(&out, refused, " of its values made no sense and were refused\n");
  }
  return out;
}

std::string RanksLine(const v1::MetricPoint& point) {
  const auto three = [&](const std::string& name) {
    return absl::StrCat(Milliseconds(point, name + ".min"), "/",
                        Milliseconds(point, name + ".median"), "/",
                        Milliseconds(point, name + ".max"));
  };
  return absl::StrFormat("%d  slowest rank %d (%.2f x median)  computes %s ms  waits %s ms\n",
                         point.step(), Number(point, "ranks.slowest"),
                         ValueOf(point, "ranks.slowest_ratio").value_or(1),
                         three("ranks.compute_ms"), three("ranks.wait_ms"));
}

}  // namespace trainyard::cli
