#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/bench/control/load.h"
#include "trainyard/v1/job_service.grpc.pb.h"

namespace trainyard::bench {

namespace {

// What clients submit, and what they met. Thread-safe.
struct Submissions {
  v1::SubmitJobRequest request;
  v1::BatchSubmitJobsRequest batch;  // in place of it, unless empty
  absl::Time end = absl::InfiniteFuture();
  std::atomic<int> left = INT_MAX;  // calls

  absl::Mutex mu;
  int clients ABSL_GUARDED_BY(mu) = 0;  // that are not done
  std::vector<double> times_ms ABSL_GUARDED_BY(mu);
  std::string error ABSL_GUARDED_BY(mu);
};

// Submits one call after the other on a connection of its own; gRPC's threads serve all clients, as
// pgbench's few threads do. Every job must be taken.
class SubmitClient {
 public:
  SubmitClient(const Target& target, Submissions& all)
      : target_(target), all_(all), stub_(v1::JobService::NewStub(Dial(target))) {}

  void Next() {
    if (absl::Now() >= all_.end || all_.left.fetch_sub(1) <= 0) return End("");
    context_ = std::make_unique<grpc::ClientContext>();
    AddToken(target_, *context_);
    context_->set_wait_for_ready(true);
    sent_ = absl::Now();
    const auto answered = [this](const grpc::Status& status) { Answered(status); };
    if (all_.batch.requests().empty()) {
      stub_->async()->SubmitJob(context_.get(), &all_.request, &job_, answered);
    } else {
      stub_->async()->BatchSubmitJobs(context_.get(), &all_.batch, &jobs_, answered);
    }
  }

 private:
  void Answered(const grpc::Status& status) {
    if (!status.ok()) return End(status.error_message());
    for (const v1::SubmitJobResult& result : jobs_.results()) {
      if (!result.has_job()) return End(result.error().message());
    }
    times_ms_.push_back(absl::ToDoubleMilliseconds(absl::Now() - sent_));
    Next();
  }
  void End(const std::string& error) {
    absl::MutexLock lock(&all_.mu);
    all_.times_ms.insert(all_.times_ms.end(), times_ms_.begin(), times_ms_.end());
    if (!error.empty()) all_.error = error;
    --all_.clients;
  }

  const Target& target_;
  Submissions& all_;
  const std::unique_ptr<v1::JobService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  v1::Job job_;
  v1::BatchSubmitJobsResponse jobs_;
  absl::Time sent_;
  std::vector<double> times_ms_;
};

}  // namespace

int RunSubmit(const Target& target, const SubmitOptions& options) {
  std::ifstream file(options.request_file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  Submissions all;
  if (!all.request.ParseFromString(bytes)) {
    std::cerr << options.request_file << ": holds no SubmitJobRequest\n";
    return 1;
  }
  all.batch.set_parent(all.request.parent());
  for (int i = 0; i < options.batch; ++i) *all.batch.add_requests() = all.request;
  const absl::Time begin = absl::Now();
  if (options.count > 0) {
    all.left = options.count;
  } else {
    all.end = begin + absl::Seconds(options.seconds);
  }
  {
    absl::MutexLock lock(&all.mu);
    all.clients = options.clients;
  }
  std::vector<std::unique_ptr<SubmitClient>> clients;
  for (int i = 0; i < options.clients; ++i) {
    clients.push_back(std::make_unique<SubmitClient>(target, all));
  }
  for (const auto& client : clients) client->Next();
  absl::MutexLock lock(&all.mu);
  const auto done = [&all]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.mu) { return all.clients == 0; };
  all.mu.Await(absl::Condition(&done));
  if (!all.error.empty()) {
    std::cerr << "submit: " << all.error << "\n";
    return 1;
  }
  const double took = absl::ToDoubleSeconds(absl::Now() - begin);
  const size_t made = all.times_ms.size() * static_cast<size_t>(std::max(1, options.batch));
  const nlohmann::json answer = {{"submitted", made},
                                 {"per_second", static_cast<double>(made) / took},
                                 {"p50_ms", Quantile(all.times_ms, 0.5)},
                                 {"p99_ms", Quantile(all.times_ms, 0.99)}};
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
