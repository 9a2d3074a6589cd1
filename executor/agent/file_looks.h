#pragma once

// Looks at the files of jobs that are about to be submitted, as the user of their project: each by
// a worker process of its own, so that a file that breaks a parser breaks nothing else.

#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "executor/agent/process.h"
#include "executor/agent/unix_user.h"
#include "executor/agent/warm_workers.h"
#include "trainyard/v1/facts.pb.h"

namespace trainyard {

// Thread-safe.
class FileLooks {
 public:
  static constexpr int kAtOnce = 2;
  static constexpr size_t kMostWaiting = 32;
  static constexpr size_t kMostWaitingOfUser = 8;
  static constexpr absl::Duration kLongest = absl::Seconds(15);

  struct Options {
    WorkerProgram worker;
    UserRules users;
    std::string folder;  // an empty one, where the processes work
  };

  // `answer` is called from threads of its own, once for each request.
  FileLooks(Options options, std::function<void(v1::LookAnswer)> answer);

  // Ends the processes; what was asked is not answered any more.
  ~FileLooks();

  // Does not wait. What more than kMostWaiting, or kMostWaitingOfUser, wait for is answered at
  // once: kUnavailable.
  void Ask(v1::LookRequest request);

  // Whoever asked waits no more.
  void ForgetWaiting();

  // Calls `act` with the processes that look. None starts meanwhile.
  void WithPids(const std::function<void(const std::set<pid_t>& pids)>& act);

 private:
  void Run();
  v1::LookAnswer Look(const v1::LookRequest& request);
  absl::StatusOr<v1::LookAnswer> AskWorker(const v1::LookRequest& request, const std::string& log);
  absl::StatusOr<Process> StartWorker(const FileDescriptor& its_end, const std::string& log);
  // What it answers, until it closes its end.
  absl::StatusOr<std::string> Converse(int socket, const run::Orders& orders,
                                       const std::string& request);
  // Kills it. One whose file system hangs is left to whoever reaps strays: nullopt.
  std::optional<ExitStatus> EndWorker(Process& process);
  bool Stops();

  const Options options_;
  const std::function<void(v1::LookAnswer)> answer_;
  absl::Mutex mu_;
  struct Waiting {
    v1::LookRequest request;
    absl::Time asked;
  };
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Mutex processes_mu_;
  std::set<pid_t> pids_ ABSL_GUARDED_BY(processes_mu_);
  std::vector<std::thread> threads_;
};

}  // namespace trainyard
