#include "clients/cli/commands/metrics_of_ranks.h"

#include <algorithm>
#include <map>
#include <vector>

#include "clients/cli/gang_view.h"
#include "clients/cli/metric_series.h"
#include "clients/cpp/job_watcher.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

// Points of which HasRanks is true, between the steps of `request`.
absl::StatusOr<std::vector<v1::AttemptMetricPoint>> FetchRanks(Client& client,
                                                               v1::QueryMetricsRequest request) {
  request.set_ranks(true);
  request.set_page_size(10000);
  std::vector<v1::AttemptMetricPoint> points;
  do {
    TY_ASSIGN_OR_RETURN(v1::QueryMetricsResponse page, client.QueryMetrics(request));
    for (auto& point : *page.mutable_points()) {
      if (HasRanks(point.point())) points.push_back(std::move(point));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return points;
}

// The newest point that tells of ranks, by a look at where there are any: a long job has many
// points. None: empty.
absl::StatusOr<std::vector<v1::AttemptMetricPoint>> FetchNewest(Client& client,
                                                                v1::QueryMetricsRequest request) {
  v1::QueryMetricsRequest where = request;
  where.set_buckets(1000);
  where.add_names("ranks.count");
  TY_ASSIGN_OR_RETURN(const v1::QueryMetricsResponse curves, client.QueryMetrics(where));
  if (curves.curves().empty() || curves.curves(0).first_steps().empty()) {
    return std::vector<v1::AttemptMetricPoint>();
  }
  const int64_t first = *curves.curves(0).first_steps().rbegin();
  request.set_from_step(std::max(request.from_step(), first));
  TY_ASSIGN_OR_RETURN(std::vector<v1::AttemptMetricPoint> points, FetchRanks(client, request));
  if (points.size() > 1) points.erase(points.begin(), points.end() - 1);
  return points;
}

// Without them only the names of nodes are missing: the attempt's record may be gone, or the server
// is of before.
std::map<int, std::string> NodesOf(Client& client, const std::string& job, int64_t attempt) {
  v1::GetGangRequest request;
  request.set_name(job);
  request.set_attempt(attempt);
  const absl::StatusOr<v1::Gang> gang = client.GetGang(request);
  return gang.ok() ? NodesByRank(*gang) : std::map<int, std::string>();
}

absl::StatusOr<int> Follow(Session& session, Client& client, const MetricsOptions& options,
                           const std::string& job) {
  Stop stop;
  const Interrupt::Scope scope(session.interrupt(), stop);
  JobWatcher watcher(client, job, {});
  JobWatcher::Handlers handlers;
  handlers.on_item = [&](const v1::FeedItem& item) {
    const v1::MetricPoint& point = item.metrics();
    if (!item.has_metrics() || !HasRanks(point) || point.step() < options.from) return true;
    if (options.to > 0 && point.step() > options.to) return true;
    const bool json = session.format() == OutputFormat::kJson;
    session.out().Write(json ? JsonLine(point) : RanksLine(point));
    return true;
  };
  const absl::StatusOr<v1::Job> end = watcher.Run(handlers, stop);
  if (stop.requested()) return kExitInterrupted;
  return end.ok() ? absl::StatusOr<int>(kExitOk) : end.status();
}

}  // namespace

absl::StatusOr<int> ShowMetricsOfRanks(Session& session, const MetricsOptions& options) {
  TY_ASSIGN_OR_RETURN(const std::string job, session.JobName(options.job));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  if (options.follow) return Follow(session, *client, options, job);
  v1::QueryMetricsRequest request;
  request.set_job(job);
  request.set_split(v1::MetricPoint::TRAIN);
  request.set_from_step(options.from);
  request.set_to_step(options.to);
  const bool every_point = options.csv || session.wants_messages();
  TY_ASSIGN_OR_RETURN(const std::vector<v1::AttemptMetricPoint> points,
                      every_point ? FetchRanks(*client, request) : FetchNewest(*client, request));
  if (options.csv) {
    session.out().Write(CsvFile(points));
  } else if (session.WriteForPrograms(points)) {
    return kExitOk;
  } else if (points.empty()) {
    session.err().Write("no rank has told anything: only a job of several ranks compares them\n");
  } else {
    const v1::AttemptMetricPoint& newest = points.back();
    session.out().Write(
        RenderRanks(session.terminal(), newest.point(), NodesOf(*client, job, newest.attempt())));
  }
  return kExitOk;
}

}  // namespace trainyard::cli
