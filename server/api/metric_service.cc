#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/services.h"
#include "server/api/unary_call.h"
#include "server/api/watch_stream.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"
#include "storage/records/rank_values.h"
#include "storage/records/text.h"
#include "trainyard/v1/run_services.grpc.pb.h"

namespace trainyard {
namespace {

std::deque<v1::StreamMetricsResponse> MetricResponses(const WatchBatch& batch) {
  std::deque<v1::StreamMetricsResponse> responses;
  for (const FeedRecord& item : batch.items) {
    const auto* metric = std::get_if<MetricRecord>(&item.what);
    if (metric == nullptr) continue;
    v1::StreamMetricsResponse& response = responses.emplace_back();
    response.set_sequence(item.sequence);
    *response.mutable_point()->mutable_point() = ToProto(*metric);
    response.mutable_point()->set_attempt(item.attempt);
    SetTimestamp(item.time, *response.mutable_point()->mutable_time());
  }
  return responses;
}

// The values that `ranks` of the request asks for: those that tell of ranks, or the others.
MetricRow WithValues(MetricRow row, bool ranks) {
  std::erase_if(row.point.values,
                [&](const auto& value) { return TellsOfRanks(value.first) != ranks; });
  return row;
}

// A metric page ends behind (step, split, attempt).
std::string FormatCursor(const MetricRow& row) {
  return absl::StrCat(row.point.step, ",", row.point.split == MetricSplit::kTrain ? 0 : 1, ",",
                      row.attempt);
}

absl::Status ApplyCursor(const std::string& cursor, JobStore::MetricQuery& query) {
  if (cursor.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(cursor, ',');
  int split = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &query.after_step) ||
      !absl::SimpleAtoi(parts[1], &split) || !absl::SimpleAtoi(parts[2], &query.after_attempt)) {
    return absl::InvalidArgumentError("page_token: damaged; begin again without one");
  }
  query.after_split = split == 0 ? MetricSplit::kTrain : MetricSplit::kValidation;
  return absl::OkStatus();
}

void AddCurves(const std::vector<MetricBucket>& buckets, v1::QueryMetricsResponse& response) {
  const MetricBucket* before = nullptr;
  v1::MetricCurve* curve = nullptr;
  for (const MetricBucket& bucket : buckets) {
    if (before == nullptr || before->split != bucket.split || before->name != bucket.name) {
      curve = response.add_curves();
      curve->set_split(bucket.split == MetricSplit::kTrain ? v1::MetricPoint::TRAIN
                                                           : v1::MetricPoint::VALIDATION);
      curve->set_name(bucket.name);
      curve->set_width(bucket.last_step - bucket.first_step + 1);
    }
    before = &bucket;
    curve->add_first_steps(bucket.first_step);
    curve->add_counts(bucket.fold.count);
    curve->add_min(bucket.fold.Least());
    curve->add_max(bucket.fold.Most());
    curve->add_mean(bucket.fold.Mean());
    curve->add_last(bucket.fold.last);
  }
}

absl::StatusOr<MetricBucketQuery> CheckBuckets(const v1::QueryMetricsRequest& request,
                                               const JobStore::MetricQuery& query) {
  if (request.buckets() < 0 || request.buckets() > 10000) {
    return FieldError("buckets", request.buckets(), "1 to 10000, or 0 for points");
  }
  if (request.include_superseded() || !request.page_token().empty()) {
    return absl::InvalidArgumentError(
        "buckets: found with include_superseded or page_token, which are for points alone");
  }
  if (request.names_size() > 64) return FieldError("names", request.names_size(), "at most 64");
  if (request.ranks()) {
    return absl::InvalidArgumentError("ranks: found with buckets; names choose among their curves");
  }
  MetricBucketQuery buckets{.train = query.train,
                            .validation = query.validation,
                            .from_step = query.from_step,
                            .to_step = query.to_step,
                            .buckets = request.buckets()};
  for (const std::string& name : request.names()) {
    TY_RETURN_IF_ERROR(CheckText("names", name));
    buckets.names.push_back(name);
  }
  return buckets;
}

class MetricService final : public v1::MetricService::CallbackService {
 public:
  explicit MetricService(const ServiceDependencies& dependencies) : b_(dependencies) {}

  grpc::ServerUnaryReactor* QueryMetrics(grpc::CallbackServerContext* context,
                                         const v1::QueryMetricsRequest* request,
                                         v1::QueryMetricsResponse* response) override {
    return RunCall(b_, Permission::kReadJobs, context, request,
                   [=, this](const Principal&) { return Query(*request, response); });
  }
  grpc::ServerWriteReactor<v1::StreamMetricsResponse>* StreamMetrics(
      grpc::CallbackServerContext* context, const v1::StreamMetricsRequest* request) override {
    return WatchStream<v1::StreamMetricsResponse>::Begin(
        *context, b_, "job", request->job(), request->after_sequence(), MetricResponses);
  }

 private:
  static absl::StatusOr<JobStore::MetricQuery> CheckQuery(const v1::QueryMetricsRequest& request) {
    JobStore::MetricQuery query;
    if (!v1::MetricPoint::Split_IsValid(request.split())) {
      return FieldError("split", request.split(), "TRAIN, VALIDATION or nothing");
    }
    query.train = request.split() != v1::MetricPoint::VALIDATION;
    query.validation = request.split() != v1::MetricPoint::TRAIN;
    if (request.from_step() < 0) return FieldError("from_step", request.from_step(), "at least 0");
    if (request.to_step() < 0 ||
        (request.to_step() > 0 && request.to_step() < request.from_step())) {
      return FieldError("to_step", request.to_step(),
                        absl::StrCat("0 or at least from_step ", request.from_step()));
    }
    query.from_step = request.from_step();
    if (request.to_step() > 0) query.to_step = request.to_step();
    query.include_superseded = request.include_superseded();
    return query;
  }

  absl::Status Query(const v1::QueryMetricsRequest& request, v1::QueryMetricsResponse* response) {
    TY_ASSIGN_OR_RETURN(const JobName name, ParseJobName("job", request.job()));
    TY_ASSIGN_OR_RETURN(JobStore::MetricQuery query, CheckQuery(request));
    if (request.buckets() != 0) {
      TY_ASSIGN_OR_RETURN(const MetricBucketQuery wanted, CheckBuckets(request, query));
      TY_ASSIGN_OR_RETURN(const JobRecord job, b_.stores.jobs().Get(name));
      TY_ASSIGN_OR_RETURN(const std::vector<MetricBucket> buckets,
                          b_.stores.jobs().ReadMetricBuckets(job.uid, wanted));
      AddCurves(buckets, *response);
      return absl::OkStatus();
    }
    if (request.names_size() > 0) {
      return absl::InvalidArgumentError("names: found without buckets, which they are for");
    }
    TY_ASSIGN_OR_RETURN(const int page_size, CheckPageSize(request.page_size(), 1000, 10000));
    const std::string question = absl::StrCat(
        "metrics\n", request.job(), "\n", request.split(), "\n", request.from_step(), "\n",
        request.to_step(), "\n", request.include_superseded(), "\n", request.ranks());
    TY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(question, request.page_token()));
    TY_RETURN_IF_ERROR(ApplyCursor(cursor, query));
    query.limit = page_size + 1;  // one more tells whether there is another page
    JobStore& jobs = b_.stores.jobs();
    TY_ASSIGN_OR_RETURN(const JobRecord job, jobs.Get(name));
    TY_ASSIGN_OR_RETURN(const std::vector<MetricRow> rows, jobs.ReadMetrics(job.uid, query));
    size_t bytes = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i == static_cast<size_t>(page_size) || bytes > kLargestAnswer) {
        response->set_next_page_token(MakePageToken(question, FormatCursor(rows[i - 1])));
        break;
      }
      const MetricRow row = WithValues(rows[i], request.ranks());
      if (request.ranks() && row.point.values.empty()) continue;
      *response->add_points() = ToProto(row);
      bytes += response->points().rbegin()->ByteSizeLong() + 8;
    }
    return absl::OkStatus();
  }

  const ServiceDependencies b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeMetricService(const ServiceDependencies& dependencies) {
  return std::make_shared<MetricService>(dependencies);
}

}  // namespace trainyard
