#pragma once

#include <csignal>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "clients/cpp/stop.h"
#include "storage/base/file.h"

namespace trainyard::cli {

// While an Interrupt exists, SIGINT, SIGTERM and SIGHUP end the process with exit code 130. Within
// a Scope the first such signal requests a stop instead, and a second one ends the process. Create
// it before any other thread, since threads inherit the signal mask that it sets. Destroy it before
// exec, since the new program would inherit the mask, too.
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
