#pragma once

// Users at the level of the store: many submit, some pause, resume, cancel and delete.

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/stores.h"

namespace trainyard::testing {

class Users {
 public:
  // The stores must outlive it.
  Users(Stores& stores, uint64_t seed) : stores_(stores), seed_(seed) {}
  ~Users() { Stop(); }

  // Submits `count` jobs of five priorities and eight demands with so many threads.
  absl::Status Fill(int count, int threads);

  // One thread submits now and then, one does the rest.
  void Start();
  void Stop();

  int submitted() const { return submitted_; }
  int deleted() const { return deleted_; }
  std::string complaint() const;

 private:
  JobRecord Describe(int number) const;
  void Submit();
  void ChangeTheirMinds();
  void ChangeOne(std::mt19937_64& random);
  void Check(const absl::Status& status);
  bool WaitToStop(absl::Duration most);

  Stores& stores_;
  const uint64_t seed_;
  std::atomic<int> submitted_{0}, deleted_{0};
  std::vector<std::thread> threads_;
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string complaint_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard::testing
