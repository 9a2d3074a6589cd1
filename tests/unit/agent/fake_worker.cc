// Stands in for trainyard-worker in tests of the agent: waits like it, writes events like it, and
// then does what the assignment's rendezvous_secret says (a field that this agent passes on
// unread).

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "executor/run/event_log.h"
#include "executor/run/orders.h"
#include "executor/run/run_directory.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"

namespace trainyard::run {
namespace {

std::atomic<bool> asked_to_suspend = false;
std::atomic<bool> deaf = false;

void Pause() { usleep(5000); }

class FakeWorker {
 public:
  explicit FakeWorker(const std::string& path)
      : directory_(path), lease_(*LeaseFile::Open(directory_.lease_path(), false)) {
    assignment_ = *directory_.ReadAssignment();
    writer_ = *EventWriter::Open(directory_.events_path(), SystemClock());
  }

  int Run(const std::string& device) {
    std::thread([this] { WatchLease(); }).detach();
    v1::RankEvent started;
    started.mutable_started()->set_pid(getpid());
    started.mutable_started()->set_device(device);
    Write(started);
    v1::RankEvent restored;
    restored.mutable_restored()->set_step(0);
    Write(restored);
    const std::string script = assignment_.rendezvous_secret();
    if (script == "finish") return Finish(3);
    if (script == "many") return Finish(20'000);
    if (script == "crash") return Crash();
    if (script == "fault") return FaultWhenTold();
    if (script == "alone") return BeLeftAlone();
    if (script == "children") return LeaveChildren();
    if (script == "print") return Print();
    if (script == "forge") {
      v1::RankEvent forged;
      forged.mutable_exited();
      Write(forged);
      for (;;) Pause();
    }
    deaf = script == "deaf";
    return StepUntilToldOtherwise();
  }

 private:
  void Write(const v1::RankEvent& event) {
    if (!writer_->Append(event).ok()) _exit(kExitStorage);
  }

  void Step() {
    v1::RankEvent event;
    event.mutable_metrics()->set_step(++step_);
    event.mutable_metrics()->set_split(v1::MetricPoint::TRAIN);
    (*event.mutable_metrics()->mutable_values())["loss"] = 1.0;
    Write(event);
  }

  int End(v1::RankEvent::Finished::Outcome outcome) {
    v1::RankEvent event;
    event.mutable_finished()->set_outcome(outcome);
    event.mutable_finished()->set_step(step_);
    Write(event);
    return kExitDone;
  }

  int Finish(int steps) {
    for (int i = 0; i < steps; ++i) Step();
    return End(v1::RankEvent::Finished::SUCCEEDED);
  }

  int Crash() {
    std::cerr << "the tensor is on fire\n";
    abort();
  }

  // Two processes of our group that ignore SIGTERM, one of them an orphan, and one of another
  // group.
  int LeaveChildren() {
    for (int i = 0; i < 3; ++i) {
      if (fork() != 0) continue;
      signal(SIGTERM, SIG_IGN);
      if (i == 1 && fork() != 0) _exit(0);
      if (i == 2) setsid();
      for (;;) pause();
    }
    Step();
    return 3;
  }

  int Print() {
    for (int i = 0; i < 1000; ++i) std::cout << "line " << i << "\n";
    std::cout << "caf\xC3\xA9 \xFF\x01" << std::endl;
    Step();
    return StepUntilToldOtherwise();
  }

  bool Told() const {
    struct stat info {};
    return stat((directory_.path() + "/go").c_str(), &info) == 0;
  }

  int FaultWhenTold() {
    for (Step(); !Told();) Pause();
    v1::RankEvent event;
    event.mutable_failure()->set_category(v1::Failure::DEVICE);
    event.mutable_failure()->set_message("an illegal address");
    Write(event);
    return kExitDevice;
  }

  bool AskedForState() const {
    const auto wish = ReadFile(directory_.keep_state_path(), 100);
    return wish.ok() && wish->rfind("0 ", 0) != 0;
  }

  // Leaves its name in memory.
  bool LeaveState() const {
    const std::string name = RunDirectory::NameOf(assignment_.key());
    return write(kStateDescriptor, name.data(), name.size()) >= 0;
  }

  int Suspend() {
    if (AskedForState() && !LeaveState()) return kExitStorage;
    return End(v1::RankEvent::Finished::SUSPENDED);
  }

  // Its gang broke.
  int BeLeftAlone() {
    v1::RankEvent event;
    event.mutable_failure()->set_category(v1::Failure::PEER);
    event.mutable_failure()->set_has_state(true);
    Write(event);
    while (!AskedForState()) Pause();
    return LeaveState() ? kExitGang : kExitStorage;
  }

  int StepUntilToldOtherwise() {
    for (;;) {
      if (Told()) return Finish(1);
      if (asked_to_suspend && !deaf) return Suspend();
      Step();
      Pause();
    }
  }

  void WatchLease() {
    while (SystemClock().SinceBoot() < lease_.Life() &&
           access(directory_.assignment_path().c_str(), F_OK) == 0) {
      Pause();
    }
    _exit(kExitFenced);
  }

  RunDirectory directory_;
  LeaseFile lease_;
  v1::Assignment assignment_;
  std::unique_ptr<EventWriter> writer_;
  int64_t step_ = 0;
};

int Main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "arithmetic") {
    std::cout << "device: " << argv[3] << "; loops: none" << std::endl;
    return kExitDone;
  }
  if (argc < 2 || std::string(argv[1]) != "--standby") return kExitUsage;
  std::cout << "waiting as " << getpid();
  for (int i = 2; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--device" || flag == "--threads") std::cout << " " << flag << " " << argv[i + 1];
  }
  std::cout << std::endl;
  OrdersReader reader;
  while (!reader.done()) {
    if (!reader.Read(STDIN_FILENO).ok()) return kExitDone;
  }
  signal(SIGTERM, [](int) { asked_to_suspend = true; });
  const absl::StatusOr<Orders> orders = ParseOrders(reader.line());
  if (!orders.ok()) return kExitUsage;
  const FileDescriptor state = reader.TakeState();
  char bytes[256];
  const ssize_t size = pread(state.get(), bytes, sizeof bytes, 0);
  if (size > 0) std::cout << "takes " << std::string(bytes, size) << std::endl;
  // Never destroyed: its lease thread looks at it until the end of the process.
  auto* worker = new FakeWorker(orders->run_directory);
  return worker->Run(orders->device + " x" + std::to_string(orders->threads));
}

}  // namespace
}  // namespace trainyard::run

int main(int argc, char** argv) {
  const int code = trainyard::run::Main(argc, argv);
  std::cout.flush();
  _exit(code);  // the lease thread is not waited for
}
