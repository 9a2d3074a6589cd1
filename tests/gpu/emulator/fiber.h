#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

// For the emulator's own bookkeeping. It is touched from every fiber, one at a time, which is not
// for a race detector to judge.
#define NOT_WATCHED __attribute__((no_sanitize("thread"), noinline))

namespace trainyard::emulator {

// A stack of its own that runs `body` whenever it is entered, until `body` leaves by Leave. One
// thread of the machine runs all fibers. AddressSanitizer and ThreadSanitizer are told of every
// switch; a switch alone orders nothing for the latter.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void Enter();  // from the machine's own stack
  void Leave();  // from the fiber's, back into Enter

 private:
  static void Start(unsigned low, unsigned high);

  std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  ucontext_t first_;  // how its stack begins
  bool began_ = false;
  // Where each side goes on. Compilers keep them in five words, and switch without asking the
  // kernel for the signal mask, which takes swapcontext most of its time.
  void* here_[5];
  void* caller_[5];
  [[maybe_unused]] void* asan_here_ = nullptr;
  [[maybe_unused]] void* asan_caller_ = nullptr;
  [[maybe_unused]] const void* caller_stack_ = nullptr;
  [[maybe_unused]] size_t caller_stack_size_ = 0;
  [[maybe_unused]] void* tsan_here_ = nullptr;
  [[maybe_unused]] void* tsan_caller_ = nullptr;
};

// What happened before Publish(key) is visible after a later Observe(key).
void Publish(void* key);
void Observe(void* key);

}  // namespace trainyard::emulator
