#include "server/retention/retention_loop.h"

#include <spdlog/spdlog.h>

#include "storage/base/status.h"

namespace trainyard {

void RetentionLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void RetentionLoop::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool RetentionLoop::stopping() {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

absl::StatusOr<Aged> RetentionLoop::Turn() {
  TY_RETURN_IF_ERROR(store_.MakeMonthlyPartitions());
  Aged all;
  do {
    TY_ASSIGN_OR_RETURN(const Aged aged, store_.Age());
    all.months += aged.months;
    all.jobs += aged.jobs;
    all.nodes += aged.nodes;
    all.more = aged.more;
  } while (all.more && !stopping());
  return all;
}

void RetentionLoop::Run() {
  while (true) {
    const absl::StatusOr<Aged> aged = Turn();
    if (!aged.ok()) {
      spdlog::warn("retention: {}", aged.status().ToString());
    } else if (aged->jobs + aged->nodes > 0) {
      spdlog::info("retention: {} jobs and {} nodes were old enough to go", aged->jobs,
                   aged->nodes);
    }
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopping_),
                             aged.ok() ? options_.every : options_.after_failure)) {
      return;
    }
  }
}

}  // namespace trainyard
