#include "tests/gpu/emulator/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "tests/gpu/emulator/watched.h"

#if defined(TRAINYARD_WATCHED_FOR_BOUNDS)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TRAINYARD_WATCHED_FOR_RACES)
#include <sanitizer/tsan_interface.h>
#endif

namespace trainyard::emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10;

// A function of its own: none may jump to where it is.
[[noreturn]] NOT_WATCHED void Jump(void** to) { __builtin_longjmp(to, 1); }

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(new char[kStackBytes]) {
  if (getcontext(&first_) != 0) std::abort();
  first_.uc_stack.ss_sp = stack_.get();
  first_.uc_stack.ss_size = kStackBytes;
  first_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&first_, reinterpret_cast<void (*)()>(&Fiber::Start), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
#if defined(TRAINYARD_WATCHED_FOR_RACES)
  tsan_here_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(TRAINYARD_WATCHED_FOR_RACES)
  __tsan_destroy_fiber(tsan_here_);
#endif
}

NOT_WATCHED void Fiber::Start(unsigned low, unsigned high) {
  Fiber* self = reinterpret_cast<Fiber*>(uintptr_t{low} | uintptr_t{high} << 32);
#if defined(TRAINYARD_WATCHED_FOR_BOUNDS)
  __sanitizer_finish_switch_fiber(self->asan_here_, &self->caller_stack_,
                                  &self->caller_stack_size_);
#endif
  for (;;) self->body_();
}

NOT_WATCHED void Fiber::Enter() {
#if defined(TRAINYARD_WATCHED_FOR_BOUNDS)
  __sanitizer_start_switch_fiber(&asan_caller_, stack_.get(), kStackBytes);
#endif
#if defined(TRAINYARD_WATCHED_FOR_RACES)
  tsan_caller_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_here_, __tsan_switch_to_fiber_no_sync);
#endif
  if (__builtin_setjmp(caller_) == 0) {
    if (began_) Jump(here_);
    began_ = true;
    setcontext(&first_);
    std::abort();  // it does not return, unless it failed
  }
#if defined(TRAINYARD_WATCHED_FOR_BOUNDS)
  __sanitizer_finish_switch_fiber(asan_caller_, nullptr, nullptr);
#endif
}

NOT_WATCHED void Fiber::Leave() {
#if defined(TRAINYARD_WATCHED_FOR_BOUNDS)
  __sanitizer_start_switch_fiber(&asan_here_, caller_stack_, caller_stack_size_);
#endif
#if defined(TRAINYARD_WATCHED_FOR_RACES)
  __tsan_switch_to_fiber(tsan_caller_, __tsan_switch_to_fiber_no_sync);
#endif
  if (__builtin_setjmp(here_) == 0) Jump(caller_);
#if defined(TRAINYARD_WATCHED_FOR_BOUNDS)
  __sanitizer_finish_switch_fiber(asan_here_, &caller_stack_, &caller_stack_size_);
#endif
}

void Publish([[maybe_unused]] void* key) {
#if defined(TRAINYARD_WATCHED_FOR_RACES)
  __tsan_release(key);
#endif
}

void Observe([[maybe_unused]] void* key) {
#if defined(TRAINYARD_WATCHED_FOR_RACES)
  __tsan_acquire(key);
#endif
}

}  // namespace trainyard::emulator
