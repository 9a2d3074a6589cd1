#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/bench/control/load.h"
#include "trainyard/v1/job_service.grpc.pb.h"

namespace trainyard::bench {

namespace {

// Sends `request`, or `batch` copies of it in one call where that is above 0; every job must be
// taken.
grpc::Status SubmitOnce(v1::JobService::Stub& stub, grpc::ClientContext& context,
                        const v1::SubmitJobRequest& request,
                        const v1::BatchSubmitJobsRequest& batch) {
  if (batch.requests().empty()) {
    v1::Job job;
    return stub.SubmitJob(&context, request, &job);
  }
  v1::BatchSubmitJobsResponse response;
  const grpc::Status status = stub.BatchSubmitJobs(&context, batch, &response);
  if (!status.ok()) return status;
  for (const v1::SubmitJobResult& result : response.results()) {
    if (!result.has_job()) return {grpc::INTERNAL, result.error().message()};
  }
  return status;
}

}  // namespace

int RunSubmit(const Target& target, const SubmitOptions& options) {
  std::ifstream file(options.request_file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  v1::SubmitJobRequest request;
  if (!request.ParseFromString(bytes)) {
    std::cerr << options.request_file << ": holds no SubmitJobRequest\n";
    return 1;
  }
  v1::BatchSubmitJobsRequest batch;
  batch.set_parent(request.parent());
  for (int i = 0; i < options.batch; ++i) *batch.add_requests() = request;
  std::atomic<int> left = options.count > 0 ? options.count : INT_MAX;
  absl::Mutex mu;
  std::vector<double> times_ms;
  std::string error;
  const absl::Time begin = absl::Now();
  const absl::Time end =
      options.count > 0 ? absl::InfiniteFuture() : begin + absl::Seconds(options.seconds);
  std::vector<std::thread> threads;
  for (int i = 0; i < options.clients; ++i) {
    threads.emplace_back([&] {
      const auto stub = v1::JobService::NewStub(Dial(target));
      std::vector<double> mine;
      while (absl::Now() < end && left.fetch_sub(1) > 0) {
        grpc::ClientContext context;
        AddToken(target, context);
        context.set_wait_for_ready(true);
        const absl::Time sent = absl::Now();
        const grpc::Status status = SubmitOnce(*stub, context, request, batch);
        if (!status.ok()) {
          absl::MutexLock lock(&mu);
          error = status.error_message();
          return;
        }
        mine.push_back(absl::ToDoubleMilliseconds(absl::Now() - sent));
      }
      absl::MutexLock lock(&mu);
      times_ms.insert(times_ms.end(), mine.begin(), mine.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!error.empty()) {
    std::cerr << "submit: " << error << "\n";
    return 1;
  }
  const double took = absl::ToDoubleSeconds(absl::Now() - begin);
  const size_t made = times_ms.size() * static_cast<size_t>(std::max(1, options.batch));
  const nlohmann::json answer = {{"submitted", made},
                                 {"per_second", static_cast<double>(made) / took},
                                 {"p50_ms", Quantile(times_ms, 0.5)},
                                 {"p99_ms", Quantile(times_ms, 0.99)}};
  std::cout << answer.dump() << std::endl;
  return 0;
}

int RunList(const Target& target, const std::string& filter, int page_size, int calls) {
  const auto stub = v1::JobService::NewStub(Dial(target));
  std::vector<double> times_ms;
  int found = 0;
  for (int i = 0; i <= calls; ++i) {
    grpc::ClientContext context;
    AddToken(target, context);
    context.set_wait_for_ready(true);
    v1::ListJobsRequest request;
    request.set_parent("projects/-");
    request.set_page_size(page_size);
    request.set_filter(filter);
    v1::ListJobsResponse response;
    const absl::Time sent = absl::Now();
    const grpc::Status status = stub->ListJobs(&context, request, &response);
    if (!status.ok()) {
      std::cerr << "list: " << status.error_message() << "\n";
      return 1;
    }
    if (i > 0) times_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - sent));  // 0: connects
    found = response.jobs_size();
  }
  const nlohmann::json answer = {{"found", found}, {"p50_ms", Quantile(times_ms, 0.5)}};
  std::cout << answer.dump() << std::endl;
  return 0;
}

namespace {

// What all watchers saw. Thread-safe.
class Seen {
 public:
  void Began() { ++began_; }
  void Gap() { ++gaps_; }
  void Point(absl::Duration late) {
    absl::MutexLock lock(&mu_);
    late_ms_.push_back(static_cast<float>(absl::ToDoubleMilliseconds(late)));
  }
  // Waits for so many points since the last time, at most `limit`, and counts anew.
  nlohmann::json Tell(size_t points, absl::Duration limit) {
    std::vector<double> late;
    {
      absl::MutexLock lock(&mu_);
      const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return late_ms_.size() >= points;
      };
      mu_.AwaitWithTimeout(absl::Condition(&reached), limit);
      late.assign(late_ms_.begin(), late_ms_.end());
      late_ms_.clear();
    }
    return {{"began", began_.load()},
            {"gaps", gaps_.load()},
            {"points", late.size()},
            {"late_ms_p50", Quantile(late, 0.5)},
            {"late_ms_p99", Quantile(late, 0.99)},
            {"late_ms_max", Quantile(late, 1)}};
  }

 private:
  std::atomic<int> began_ = 0;
  std::atomic<int> gaps_ = 0;
  absl::Mutex mu_;
  std::vector<float> late_ms_ ABSL_GUARDED_BY(mu_);
};

class Watcher : public grpc::ClientReadReactor<v1::WatchJobResponse> {
 public:
  Watcher(const Target& target, v1::JobService::Stub& stub, const std::string& name, Seen& seen)
      : seen_(seen) {
    AddToken(target, context_);
    request_.set_name(name);
    stub.async()->WatchJob(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void End() {
    context_.TryCancel();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (std::exchange(first_, false)) seen_.Began();
    if (response_.has_item()) {
      if (response_.item().sequence() != ++sequence_) seen_.Gap();
      sequence_ = response_.item().sequence();
      if (response_.item().has_metrics()) {
        seen_.Point(absl::Now() -
                    absl::FromUnixMicros(google::protobuf::util::TimeUtil::TimestampToMicroseconds(
                        response_.item().time())));
      }
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (status.error_code() != grpc::StatusCode::CANCELLED) {
      std::cerr << "watch: " << status.error_message() << "\n";
    }
    absl::MutexLock lock(&mu_);
    done_ = true;
  }

 private:
  grpc::ClientContext context_;
  v1::WatchJobRequest request_;
  v1::WatchJobResponse response_;
  Seen& seen_;
  bool first_ = true;
  int64_t sequence_ = 0;
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

int RunWatch(const Target& target, const std::string& names_file, int watchers, int connections) {
  std::ifstream file(names_file);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) names.push_back(line);
  std::vector<std::unique_ptr<v1::JobService::Stub>> stubs;
  for (int i = 0; i < connections; ++i) stubs.push_back(v1::JobService::NewStub(Dial(target)));
  Seen seen;
  std::vector<std::unique_ptr<Watcher>> all;
  for (int i = 0; i < watchers; ++i) {
    all.push_back(
        std::make_unique<Watcher>(target, *stubs[i % connections], names[i % names.size()], seen));
  }
  for (std::string line; std::getline(std::cin, line);) {
    size_t points = 0;
    double seconds = 0;
    std::istringstream(line) >> points >> seconds;
    std::cout << seen.Tell(points, absl::Seconds(seconds)).dump() << std::endl;
  }
  for (const auto& watcher : all) watcher->End();
  return 0;
}

}  // namespace trainyard::bench
