#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/commands.h"
#include "clients/cli/commands/metrics_of_ranks.h"
#include "clients/cli/format.h"
#include "clients/cli/gang_view.h"
#include "clients/cli/metric_series.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/table.h"
#include "clients/cpp/job_watcher.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

// The point without what tells its ranks apart, which --ranks shows.
v1::MetricPoint WithoutRanks(v1::MetricPoint point) {
  std::vector<std::string> names;
  for (const auto& [name, value] : point.values()) {
    if (TellsOfRanks(name)) names.push_back(name);
  }
  for (const std::string& name : names) point.mutable_values()->erase(name);
  return point;
}

absl::StatusOr<v1::MetricPoint::Split> ParseSplit(const std::string& text) {
  if (text.empty()) return v1::MetricPoint::SPLIT_UNSPECIFIED;
  if (text == "train") return v1::MetricPoint::TRAIN;
  if (text == "validation" || text == "val") return v1::MetricPoint::VALIDATION;
  return absl::InvalidArgumentError(
      absl::StrCat("--split: '", text, "' is not a split; expected train or validation"));
}

absl::StatusOr<v1::QueryMetricsRequest> MakeRequest(Session& session,
                                                    const MetricsOptions& options) {
  v1::QueryMetricsRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_job(), session.JobName(options.job));
  TY_ASSIGN_OR_RETURN(const v1::MetricPoint::Split split, ParseSplit(options.split));
  request.set_split(split);
  request.set_from_step(options.from);
  request.set_to_step(options.to);
  request.set_include_superseded(options.superseded);
  request.set_page_size(10000);
  return request;
}

absl::StatusOr<std::vector<v1::AttemptMetricPoint>> Fetch(Client& client,
                                                          v1::QueryMetricsRequest request) {
  std::vector<v1::AttemptMetricPoint> points;
  do {
    TY_ASSIGN_OR_RETURN(v1::QueryMetricsResponse page, client.QueryMetrics(request));
    for (auto& point : *page.mutable_points()) {
      *point.mutable_point() = WithoutRanks(std::move(*point.mutable_point()));  // of an old server
      points.push_back(std::move(point));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return points;
}

std::string Plot(const Session& session, const MetricSeries& series, const std::string& metric) {
  const Terminal& terminal = session.terminal();
  const int height = std::clamp(terminal.height - 6, 12, 24);
  return RenderPlot(terminal, series.Curves(metric), std::min(terminal.width, 120), height);
}

std::string RenderPoints(const Session& session, const std::vector<v1::AttemptMetricPoint>& points,
                         const std::vector<std::string>& names, bool superseded) {
  std::vector<std::string> header = {"STEP", "SPLIT"};
  for (const std::string& name : names) header.push_back(EscapedLine(name));
  if (superseded) header.push_back("ATTEMPT");
  Table table(header);
  table.AlignRight(0);
  for (size_t i = 0; i < names.size(); ++i) table.AlignRight(static_cast<int>(i) + 2);
  for (const v1::AttemptMetricPoint& p : points) {
    std::vector<std::string> row = {FormatCount(p.point().step()), SplitName(p.point().split())};
    for (const std::string& name : names) {
      const auto found = p.point().values().find(name);
      row.push_back(found == p.point().values().end() ? "" : FormatMetric(found->second));
    }
    if (superseded) row.push_back(absl::StrCat(p.attempt(), p.superseded() ? " superseded" : ""));
    table.Add(std::move(row));
  }
  return table.Render(session.terminal());
}

absl::StatusOr<int> Query(Session& session, const MetricsOptions& options) {
  TY_ASSIGN_OR_RETURN(const v1::QueryMetricsRequest request, MakeRequest(session, options));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(std::vector<v1::AttemptMetricPoint> points, Fetch(*client, request));
  MetricSeries series;
  for (const v1::AttemptMetricPoint& point : points) series.Add(point.point());
  if (options.csv) {
    session.out().Write(CsvFile(points));
  } else if (options.plot) {
    session.out().Write(Plot(session, series, options.metric));
  } else if (session.WriteForPrograms(points)) {
    return kExitOk;
  } else if (points.empty()) {
    session.err().Write("no metrics yet\n");
  } else {
    const int total = static_cast<int>(points.size());
    const int dropped = options.all ? 0 : std::max(0, total - options.last);
    points.erase(points.begin(), points.begin() + dropped);
    session.out().Write(RenderPoints(session, points, series.Names(), options.superseded));
    if (dropped > 0) {
      session.err().Write(absl::StrCat("(the last ", options.last, " of ", FormatCount(total),
                                       "; --all shows every point, --plot draws them)\n"));
    }
  }
  return kExitOk;
}

// Draws the plot in place, over the one that it drew before.
class LivePlot {
 public:
  LivePlot(Session& session, std::string metric) : session_(session), metric_(std::move(metric)) {}

  void Show(const MetricSeries& series, bool now) {
    if (!now && absl::Now() - drawn_ < absl::Milliseconds(500)) return;
    drawn_ = absl::Now();
    const std::string text = Plot(session_, series, metric_);
    const bool in_place = session_.terminal().interactive && lines_ > 0;
    session_.out().Write(
        absl::StrCat(in_place ? absl::StrCat("\x1b[", lines_, "A\x1b[J") : "", text));
    lines_ = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

 private:
  Session& session_;
  const std::string metric_;
  absl::Time drawn_ = absl::InfinitePast();
  int lines_ = 0;
};

std::string PlainLine(const v1::MetricPoint& point) {
  std::string out = absl::StrCat(point.step(), " ", SplitName(point.split()));
  MetricSeries one;
  one.Add(point);
  for (const std::string& name : one.Names()) {
    absl::StrAppend(&out, "  ", EscapedLine(name), " ", FormatMetric(point.values().at(name)));
  }
  return out + "\n";
}

// The columns of a CSV file that is written while points arrive: what jobs report, and whatever
// else the first point has.
std::vector<std::string> ColumnsFrom(const v1::MetricPoint& first) {
  std::vector<std::string> names = {"loss",      "accuracy",  "perplexity", "bits_per_byte",
                                    "auc",       "best_auc",  "z_loss",     "learning_rate",
                                    "grad_norm", "ema_decay", "step_ms",    "samples_per_second"};
  MetricSeries one;
  one.Add(first);
  for (const std::string& name : one.Names()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

// A header that is written cannot grow: says once of each value that is left out.
void TellWhatHasNoColumn(Session& session, const v1::MetricPoint& point,
                         const std::vector<std::string>& names, std::set<std::string>& told) {
  for (const auto& [name, value] : point.values()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (!told.insert(name).second) continue;
    session.err().Write(absl::StrCat("(", EscapedLine(name), " has no column: it was first ",
                                     "reported after the header; --output json shows it)\n"));
  }
}

absl::StatusOr<int> Follow(Session& session, const MetricsOptions& options) {
  Stop stop;
  const Interrupt::Scope scope(session.interrupt(), stop);
  TY_ASSIGN_OR_RETURN(const v1::QueryMetricsRequest request, MakeRequest(session, options));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  MetricSeries series;
  LivePlot plot(session, options.metric);
  std::vector<std::string> names;  // CSV columns, once the header is written
  std::set<std::string> told_of;   // values without a column of which the user was told
  JobWatcher watcher(*client, request.job(), {});
  JobWatcher::Handlers handlers;
  handlers.on_item = [&](const v1::FeedItem& item) {
    if (item.has_attempt_started()) series.DropPointsAfter(item.attempt_started().step());
    if (!item.has_metrics()) return true;
    const v1::MetricPoint point = WithoutRanks(item.metrics());
    if (request.split() != v1::MetricPoint::SPLIT_UNSPECIFIED && point.split() != request.split()) {
      return true;
    }
    if (point.step() < options.from || (options.to > 0 && point.step() > options.to)) return true;
    series.Add(point);
    if (options.plot) {
      if (session.terminal().interactive) plot.Show(series, false);
    } else if (options.csv) {
      if (names.empty()) {
        names = ColumnsFrom(point);
        session.out().Write(CsvHeader(names));
      }
      session.out().Write(CsvLine(point, names));
      TellWhatHasNoColumn(session, point, names, told_of);
    } else {
      const bool json = session.format() == OutputFormat::kJson;
      session.out().Write(json ? JsonLine(point) : PlainLine(point));
    }
    return true;
  };
  const absl::StatusOr<v1::Job> end = watcher.Run(handlers, stop);
  if (options.plot) plot.Show(series, true);
  if (stop.requested()) return kExitInterrupted;
  return end.ok() ? absl::StatusOr<int>(kExitOk) : end.status();
}

}  // namespace

void AddMetrics(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("metrics", "Losses and other values by step");
  auto options = std::make_shared<MetricsOptions>();  // lives as long as the command's body
  command->add_option("JOB", options->job, "Id or full name of the job")->required();
  command->add_flag("--plot", options->plot, "Draw the curves");
  command->add_flag("--csv", options->csv, "Comma-separated values, all points");
  command->add_flag("-f,--follow", options->follow, "Go on until the job ends");
  command->add_option("--metric", options->metric, "What --plot draws (default loss)");
  command->add_option("--split", options->split, "train or validation (default both)");
  command->add_option("--from", options->from, "First step")->check(AtLeast(0));
  command->add_option("--to", options->to, "Last step")->check(AtLeast(0));
  command->add_option("--last", options->last, "So many points in the table (default 20)")
      ->check(AtLeast(1));
  command->add_flag("--all", options->all, "All points in the table");
  command->add_flag("--superseded", options->superseded,
                    "Also what earlier attempts reported and a later one computed again");
  command->add_flag("--ranks", options->ranks,
                    "How the ranks of a gang compare, at the newest step; with -o json, --csv or "
                    "--follow at every step that tells");
  session.SetBody(command, [&session, options] {
    if (options->ranks) return ShowMetricsOfRanks(session, *options);
    return options->follow ? Follow(session, *options) : Query(session, *options);
  });
}

}  // namespace trainyard::cli
