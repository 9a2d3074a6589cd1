// Runs grids of blocks of device threads, each thread a fiber.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cuda_runtime.h"
#include "tests/gpu/emulator/fiber.h"

namespace trainyard::emulator {
namespace {

constexpr unsigned kWarp = 32, kMostThreads = 1024;
constexpr size_t kFreeShared = 48 << 10;  // without cudaFuncSetAttribute

enum class State { kReady, kAtBlockBarrier, kAtWarp, kDone };

struct DeviceThread {
  std::unique_ptr<Fiber> fiber;
  State state = State::kDone;
  int predicate = 0;
  unsigned barriers = 0, warp_barriers = 0, exchanges = 0;  // so far in this block
  // Two, in turn: a lane that runs ahead must not overwrite what a slower one has yet to read, nor
  // publish at the next barrier to those who are still leaving this one.
  uint64_t given[2] = {0, 0};
  uint64_t shown[2][4] = {};
  unsigned meeting = 0;  // what it waits for with its warp: all of a warp must do the same
  char warp_key[2];      // the first lane's serve its warp
};

struct Machine {
  std::vector<DeviceThread> threads;
  unsigned block_threads = 0, thread = 0, block = 0, blocks = 0;
  const std::function<void()>* program = nullptr;
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
  int predicates = 0;
  char block_key[2];
  std::vector<unsigned> order;
  std::mt19937 random{1};
  size_t most_shared = 163 << 10;  // compute capability 8.0; 8.6 has 99 KiB, 9.0 has 227
  std::map<const void*, size_t> shared_limits;
};

NOT_WATCHED Machine& M() {
  static Machine& machine = *new Machine;  // fibers never end
  return machine;
}

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "emulator: %s (block %u of %u, %u threads)\n", what, M().block, M().blocks,
               M().block_threads);
  std::abort();
}

// Leaves the running thread in `state`; returns once that has been resolved.
NOT_WATCHED void Wait(State state) {
  DeviceThread& me = M().threads[M().thread];
  me.state = state;
  me.fiber->Leave();
}

NOT_WATCHED void ThreadBody() {
  Observe(&M().program);
  (*M().program)();
  Publish(&M().blocks);
  Wait(State::kDone);
}

NOT_WATCHED void RunReady() {
  Machine& m = M();
  for (unsigned i : m.order) {
    if (m.threads[i].state != State::kReady) continue;
    m.thread = i;
    m.threads[i].fiber->Enter();
  }
}

// True when threads [first, last) all are in `state`.
NOT_WATCHED bool AllIn(State state, unsigned first, unsigned last) {
  unsigned in = 0;
  for (unsigned i = first; i < last; ++i) in += M().threads[i].state == state;
  return in == last - first;
}

// Lets those go on who wait for each other and have all come. False when nobody could.
NOT_WATCHED bool Resolve() {
  Machine& m = M();
  bool any = false;
  for (unsigned first = 0; first < m.block_threads; first += kWarp) {
    const unsigned last = std::min(first + kWarp, m.block_threads);
    if (last - first != kWarp || !AllIn(State::kAtWarp, first, last)) continue;
    for (unsigned i = first; i < last; ++i) {
      if (m.threads[i].meeting != m.threads[first].meeting)
        Die("lanes of a warp do different things");
      m.threads[i].state = State::kReady;
    }
    any = true;
  }
  if (AllIn(State::kAtBlockBarrier, 0, m.block_threads)) {
    m.predicates = 0;
    for (unsigned i = 0; i < m.block_threads; ++i) {
      m.predicates += m.threads[i].predicate;
      m.threads[i].state = State::kReady;
    }
    any = true;
  }
  return any;
}

NOT_WATCHED void RunBlock(unsigned block) {
  Machine& m = M();
  m.block = block;
  m.threads.reserve(kMostThreads);  // fibers hold on to their places
  while (m.threads.size() < m.block_threads) {
    m.threads.emplace_back().fiber = std::make_unique<Fiber>(ThreadBody);
  }
  // In a different order in each block: what depends on the order has a chance to show.
  m.order.resize(m.block_threads);
  for (unsigned i = 0; i < m.block_threads; ++i) m.order[i] = i;
  std::shuffle(m.order.begin(), m.order.end(), m.random);
  for (unsigned i = 0; i < m.block_threads; ++i) {
    DeviceThread& thread = m.threads[i];
    thread.state = State::kReady;
    thread.barriers = thread.warp_barriers = thread.exchanges = 0;
  }
  Publish(&m.program);
  for (;;) {
    RunReady();
    if (AllIn(State::kDone, 0, m.block_threads)) break;
    if (!Resolve()) Die("threads wait at a barrier or a warp exchange that others never reach");
  }
  Observe(&m.blocks);
}

}  // namespace

template <>
NOT_WATCHED Coordinate<Axis::kThread>::operator unsigned() const {
  return M().thread;
}
template <>
NOT_WATCHED Coordinate<Axis::kBlock>::operator unsigned() const {
  return M().block;
}
template <>
NOT_WATCHED Coordinate<Axis::kBlocks>::operator unsigned() const {
  return M().blocks;
}

cudaError_t CheckGrid(const cudaLaunchConfig_t& config, size_t limit) {
  const unsigned threads = config.blockDim.x, blocks = config.gridDim.x;
  const bool one_axis =
      config.blockDim.y * config.blockDim.z * config.gridDim.y * config.gridDim.z == 1;
  return one_axis && threads > 0 && threads <= kMostThreads && blocks > 0 &&
                 blocks <= 0x7fffffffu && config.dynamicSmemBytes <= limit
             ? cudaSuccess
             : cudaErrorInvalidConfiguration;
}

void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  Machine& m = M();
  m.block_threads = config.blockDim.x;
  m.blocks = config.gridDim.x;
  m.program = &thread;
  for (unsigned block = 0; block < m.blocks; ++block) {
    // NaN everywhere, and ends where the block's memory ends.
    std::unique_ptr<unsigned char[]> shared(new unsigned char[config.dynamicSmemBytes]);
    memset(shared.get(), 0xff, config.dynamicSmemBytes);
    m.shared = shared.get();
    m.shared_bytes = config.dynamicSmemBytes;
    RunBlock(block);
  }
}

size_t SharedLimit(const void* kernel) {
  const auto found = M().shared_limits.find(kernel);
  return found == M().shared_limits.end() ? kFreeShared : found->second;
}

size_t MostShared() { return M().most_shared; }

void SetMostShared(size_t bytes) {
  M().most_shared = bytes;
  M().shared_limits.clear();
}

void SetSharedLimit(const void* kernel, size_t bytes) { M().shared_limits[kernel] = bytes; }

NOT_WATCHED unsigned char* BlockShared() { return M().shared; }

NOT_WATCHED bool IsBlockShared(const void* at, size_t bytes) {
  const auto offset = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(M().shared);
  return offset <= M().shared_bytes && bytes <= M().shared_bytes - offset;
}

NOT_WATCHED int BlockBarrier(int predicate) {
  DeviceThread& me = M().threads[M().thread];
  me.predicate = predicate;
  char* key = &M().block_key[me.barriers++ % 2];
  Publish(key);
  Wait(State::kAtBlockBarrier);
  Observe(key);
  return M().predicates;
}

NOT_WATCHED void WarpBarrier() {
  const unsigned thread = M().thread;
  char* key =
      &M().threads[thread / kWarp * kWarp].warp_key[M().threads[thread].warp_barriers++ % 2];
  Publish(key);
  M().threads[thread].meeting = 3;
  Wait(State::kAtWarp);
  Observe(key);
}

// An exchange moves registers; it orders no memory.
NOT_WATCHED uint64_t WarpExchange(uint64_t mine, int offset) {
  const unsigned thread = M().thread;
  const unsigned turn = M().threads[thread].exchanges++ % 2;
  M().threads[thread].given[turn] = mine;
  M().threads[thread].meeting = 1 + 4 * static_cast<unsigned>(offset);
  Wait(State::kAtWarp);
  return M().threads[thread ^ static_cast<unsigned>(offset)].given[turn];
}

// A sanitizer would watch memcpy: what lanes show each other orders nothing and races with nothing.
NOT_WATCHED void WarpGather(const void* mine, size_t bytes, void* all) {
  const unsigned thread = M().thread, first = thread / kWarp * kWarp;
  const size_t words = bytes / sizeof(uint64_t);
  DeviceThread& me = M().threads[thread];
  const unsigned turn = me.exchanges++ % 2;
  if (bytes % sizeof(uint64_t) != 0 || bytes > sizeof(me.shown[turn])) Die("a lane shows too much");
  for (size_t i = 0; i < words; ++i) {
    me.shown[turn][i] = static_cast<const volatile uint64_t*>(mine)[i];
  }
  me.meeting = 2 + 4 * static_cast<unsigned>(bytes);
  Wait(State::kAtWarp);
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    for (size_t i = 0; i < words; ++i) {
      static_cast<volatile uint64_t*>(all)[lane * words + i] =
          M().threads[first + lane].shown[turn][i];
    }
  }
}

void Trap() { Die("__trap"); }

}  // namespace trainyard::emulator

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > trainyard::emulator::MostShared()) {
    return cudaErrorInvalidValue;
  }
  trainyard::emulator::SetSharedLimit(kernel, static_cast<size_t>(value));
  return cudaSuccess;
}
