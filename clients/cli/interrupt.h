#pragma once

#include <csignal>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "clients/cpp/stop.h"
#include "storage/base/file.h"

namespace trainyard::cli {

// While it lives, SIGINT, SIGTERM and SIGHUP end the process with 130, or, within a Scope, request
// a stop; a second one then ends the process. Make it before any other thread: threads inherit the
// mask that it sets, and so do programs that the process turns into: destroy it before exec.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  class Scope {
   public:
    Scope(Interrupt& interrupt, Stop& stop) : interrupt_(interrupt) { interrupt_.Aim(&stop); }
    ~Scope() { interrupt_.Aim(nullptr); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupt& interrupt_;
  };

 private:
  void Aim(Stop* stop) {
    absl::MutexLock lock(&mu_);
    stop_ = stop;
  }
  void Run();

  sigset_t before_;
  FileDescriptor signals_;
  FileDescriptor done_;
  absl::Mutex mu_;
  Stop* stop_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::thread thread_;
};

}  // namespace trainyard::cli
