// gRPC hands an operation from the thread that starts it to the thread that runs its callback
// through queues of its own, which the packaged library hides from ThreadSanitizer. It would then
// report every member of an operation, most of which live in gRPC's headers and are compiled,
// instrumented, into our programs.
//
// This names the two edges that are missing: what was done before grpc_call_start_batch(tag) is
// seen by the callback of that tag; and what all callbacks of a call did, OnCancel too, is seen by
// its OnDone. Nothing is suppressed, and nothing else is ordered: what our own threads share
// besides must be locked by ourselves. For programs that serve with gRPC's callbacks.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>
#include <link.h>
#include <sanitizer/tsan_interface.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace {

using Run = void (*)(grpc_completion_queue_functor*, int);

std::mutex originals_mutex;
std::map<void*, Run>& Originals() {
  static auto* originals = new std::map<void*, Run>();
  return *originals;
}

struct Segment {
  uintptr_t begin;
  uintptr_t end;
};

// The code of the program and of the libraries that it was started with. Read once, before there
// are threads. Reading it for each operation would end in a deadlock now and then:
// dl_iterate_phdr holds the loader's lock while it calls us, where ThreadSanitizer may make us wait
// until another thread has written its report, and that thread needs the loader's lock to name the
// code in the report.
const std::vector<Segment>& Code() {
  static const auto* const code = [] {
    auto* found = new std::vector<Segment>;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr)& segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
            const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
            static_cast<std::vector<Segment>*>(data)->push_back({begin, begin + segment.p_memsz});
          }
          return 0;
        },
        found);
    return found;
  }();
  return *code;
}

[[maybe_unused]] const size_t read_before_there_are_threads = Code().size();

// A tag of a callback queue begins with a pointer to code, one of another queue with a pointer to a
// table of virtual functions, which is data.
bool IsFunctor(void* tag) {
  if (tag == nullptr) return false;
  const auto first = reinterpret_cast<uintptr_t>(*static_cast<void**>(tag));
  return std::any_of(Code().begin(), Code().end(), [first](const Segment& segment) {
    return first >= segment.begin && first < segment.end;
  });
}

void Trampoline(grpc_completion_queue_functor* functor, int ok) {
  __tsan_acquire(functor);
  Run run = nullptr;
  {
    std::lock_guard lock(originals_mutex);
    run = Originals()[functor];
  }
  run(functor, ok);
}

// Runs what is handed to it on a thread of its own, through a lock that ThreadSanitizer sees.
class Handover {
 public:
  void Push(std::function<void()> task) {
    std::lock_guard lock(mu_);
    queue_.push_back(std::move(task));
    changed_.notify_one();
  }
  [[noreturn]] void Run() {
    while (true) {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::function<void()> task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
    }
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
};

Handover& TheHandover() {
  static Handover* const handover = [] {
    auto* made = new Handover;  // lives as long as gRPC's own threads: to the end
    std::thread([made] { made->Run(); }).detach();
    return made;
  }();
  return *handover;
}

}  // namespace

extern "C" __attribute__((no_sanitize("thread"))) grpc_call_error grpc_call_start_batch(
    grpc_call* call, const grpc_op* ops, size_t nops, void* tag, void* reserved) {
  using Fn = grpc_call_error(grpc_call*, const grpc_op*, size_t, void*, void*);
  static Fn* const next = reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, "grpc_call_start_batch"));
  if (IsFunctor(tag)) {
    auto* functor = static_cast<grpc_completion_queue_functor*>(tag);
    if (functor->functor_run != Trampoline) {
      std::lock_guard lock(originals_mutex);
      Originals()[functor] = functor->functor_run;
      functor->functor_run = Trampoline;
    }
    __tsan_release(functor);
  }
  return next(call, ops, nops, tag, reserved);
}

// Both methods hand something to gRPC's executor; here it goes through the handover instead.
namespace {

using grpc::internal::ServerCallbackCall;
using grpc::internal::ServerReactor;

struct OpenCall : ServerCallbackCall {
  using ServerCallbackCall::Ref;
};

}  // namespace

#define SCHEDULE_ON_DONE "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb"
extern "C++" void ScheduleOnDone(ServerCallbackCall* call,
                                 bool inline_ondone) asm(SCHEDULE_ON_DONE);
void ScheduleOnDone(ServerCallbackCall* call, bool inline_ondone) {
  using Fn = void(ServerCallbackCall*, bool);
  static Fn* const next = reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, SCHEDULE_ON_DONE));
  // callbacks_outstanding_, the second of the two atomic ints of ServerCallbackCall: the callbacks
  // that ended before counted it down, in our code visibly; the last one may have done so inside
  // the library.
  __tsan_acquire(reinterpret_cast<char*>(call) + sizeof(void*) + sizeof(int));
  if (inline_ondone) return next(call, true);
  TheHandover().Push([call] { next(call, true); });
}

#define CALL_ON_CANCEL "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE"
extern "C++" void CallOnCancel(ServerCallbackCall* call,
                               ServerReactor* reactor) asm(CALL_ON_CANCEL);
void CallOnCancel(ServerCallbackCall* call, ServerReactor* reactor) {
  static_cast<OpenCall*>(call)->Ref();
  TheHandover().Push([call, reactor] {
    reactor->OnCancel();
    call->MaybeDone();
  });
}
