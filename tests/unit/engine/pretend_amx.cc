// A library to preload: oneDNN then takes this machine for a server with AMX (Sapphire Rapids),
// whatever it is. What oneDNN only decides can be asked for this way on any x86-64 machine: which
// implementation it takes for a shape and how much scratch that asks for. What it computes cannot:
// its kernels would meet instructions that the machine does not have, so nothing may be launched.
// ONEDNN_MAX_CPU_ISA still limits what is pretended.
//
// oneDNN asks the CPU with the instructions cpuid and xgetbv: in the constructor of its Cpu, where
// it is initialised, and for the sizes of tiles in the functions behind amx::is_available. There
// each of them is replaced by a breakpoint before oneDNN runs, and the handler of SIGTRAP answers.

#include <cpuid.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/ucontext.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace dnnl::impl::cpu::x64::amx {
// In place of oneDNN's own, which asks Linux for the right to use tiles.
__attribute__((visibility("default"))) bool is_available() { return true; }
}  // namespace dnnl::impl::cpu::x64::amx

namespace {

constexpr uint8_t kBreakpoint = 0xcc;
constexpr std::array<uint8_t, 2> kCpuid = {0x0f, 0xa2};
constexpr std::array<uint8_t, 3> kXgetbv = {0x0f, 0x01, 0xd0};

// Places where a breakpoint stands for cpuid, and the one where it stands for xgetbv.
std::array<uintptr_t, 64> cpuids;
size_t cpuid_count = 0;
uintptr_t xgetbv = 0;

[[noreturn]] void Die(const char* why) {
  std::fprintf(stderr, "pretend_amx: %s\n", why);
  _exit(2);
}

struct Registers {
  uint32_t a, b, c, d;
};

// One level of a cache with lines of 64 bytes, as leaf 4 tells it. Type 1: data, 2: instructions,
// 3: both.
Registers Cache(uint32_t type, uint32_t level, uint32_t ways, uint32_t sets, uint32_t threads) {
  return {type | level << 5 | (threads - 1) << 14 | 63u << 26, 63u | (ways - 1) << 22, sets - 1, 0};
}

// Intel's Software Developer's Manual, volume 2A, CPUID. What is not told here is this machine's
// own.
Registers Answer(uint32_t leaf, uint32_t sub) {
  const auto bit = [](int n) { return uint32_t{1} << n; };
  Registers r{};
  __cpuid_count(leaf, sub, r.a, r.b, r.c, r.d);
  switch (leaf) {
    case 0x0:  // GenuineIntel
      return {0x20, 0x756e6547, 0x6c65746e, 0x49656e69};
    case 0x1:  // family 6, model 143; fma, xsave, osxsave, avx
      return {0x000806f8, r.b, r.c | bit(12) | bit(26) | bit(27) | bit(28), r.d};
    case 0x4:
      if (sub == 0) return Cache(1, 1, 12, 64, 2);
      if (sub == 1) return Cache(2, 1, 8, 64, 2);
      if (sub == 2) return Cache(3, 2, 16, 2048, 2);
      if (sub == 3) return Cache(3, 3, 15, 114688, 64);
      return {};
    case 0x7:
      if (sub == 0) {  // avx2; avx512 f, dq, ifma, cd, bw, vl, vbmi, vbmi2, vnni, bitalg,
                       // vpopcntdq; amx bf16, tile, int8
        return {1, r.b | bit(5) | bit(16) | bit(17) | bit(21) | bit(28) | bit(30) | bit(31),
                r.c | bit(1) | bit(6) | bit(11) | bit(12) | bit(14), bit(22) | bit(24) | bit(25)};
      }
      return {sub == 1 ? bit(4) | bit(5) : 0, 0, 0, 0};  // avx_vnni, avx512_bf16
    case 0xb:                                            // two threads to a core, 64 to a package
      if (sub == 0) return {1, 2, 0x100, 0};
      if (sub == 1) return {6, 64, 0x201, 0};
      return {0, 0, sub, 0};
    case 0x1d:  // one palette: 8 tiles of 16 rows of 64 bytes
      if (sub == 0) return {1, 0, 0, 0};
      return {8192 | 1024u << 16, 64 | 8u << 16, 16, 0};
    default:
      return r;
  }
}

bool IsAt(const uint8_t* code, const auto& bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (code[i] != bytes[i]) return false;
  }
  return true;
}

void AnswerCpuid(greg_t* registers) {
  const Registers r =
      Answer(static_cast<uint32_t>(registers[REG_RAX]), static_cast<uint32_t>(registers[REG_RCX]));
  registers[REG_RAX] = r.a;
  registers[REG_RBX] = r.b;
  registers[REG_RCX] = r.c;
  registers[REG_RDX] = r.d;
}

void OnTrap(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto at = static_cast<uintptr_t>(registers[REG_RIP]) - 1;  // of the breakpoint
  if (at == xgetbv) {  // x87, sse, avx, three states of avx512, two of amx
    registers[REG_RAX] = 0x600e7;
    registers[REG_RDX] = 0;
    registers[REG_RIP] = static_cast<greg_t>(at + kXgetbv.size());
    return;
  }
  for (size_t i = 0; i < cpuid_count; ++i) {
    if (cpuids[i] != at) continue;
    AnswerCpuid(registers);
    registers[REG_RIP] = static_cast<greg_t>(at + kCpuid.size());
    return;
  }
  Die("a trap that is not ours");
}

// The machine code of oneDNN.
struct Code {
  uint8_t* begin = nullptr;
  uint8_t* end = nullptr;
};

// Of the library that holds `function`.
Code CodeAround(const void* function) {
  struct Search {
    const void* function;
    Code code;
  } search{function, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& [function, code] = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          auto* const begin = reinterpret_cast<uint8_t*>(info->dlpi_addr + segment.p_vaddr);
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          if (function >= begin && function < begin + segment.p_memsz)
            code = {begin, begin + segment.p_memsz};
        }
        return 0;
      },
      &search);
  return search.code;
}

// Breakpoints for every cpuid in [begin, end).
void ReplaceCpuids(uint8_t* begin, uint8_t* end) {
  for (uint8_t* at = begin; at + kCpuid.size() < end; ++at) {
    if (!IsAt(at, kCpuid)) continue;
    if (cpuid_count == cpuids.size()) Die("more cpuid instructions than expected");
    cpuids[cpuid_count++] = reinterpret_cast<uintptr_t>(at);
    *at = kBreakpoint;
  }
}

// Linked with -z initfirst: before oneDNN's own initialisers.
__attribute__((constructor)) void Begin() {
  constexpr size_t kAmxFunctions = 0x500, kBefore = 0x400, kAfter = 0x600, kLeastCpuids = 8;
  struct sigaction action = {};
  action.sa_sigaction = OnTrap;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGTRAP, &action, nullptr) != 0) Die("sigaction failed");
  auto* const amx =
      static_cast<uint8_t*>(dlsym(RTLD_NEXT, "_ZN4dnnl4impl3cpu3x643amx12is_availableEv"));
  const Code code = CodeAround(amx);
  if (amx == nullptr || code.begin == nullptr) Die("oneDNN's amx::is_available was not found");
  const size_t bytes = code.end - code.begin;
  if (mprotect(code.begin, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) Die("mprotect failed");
  ReplaceCpuids(amx, amx + kAmxFunctions);
  // The constructor of Cpu is where xgetbv stands among many cpuids; other places with the same
  // bytes are parts of other instructions.
  for (uint8_t* at = code.begin + kBefore; at + kAfter < code.end; ++at) {
    if (!IsAt(at, kXgetbv)) continue;
    size_t around = 0;
    for (const uint8_t* c = at - kBefore; c < at + kAfter; ++c) around += IsAt(c, kCpuid);
    if (around < kLeastCpuids) continue;
    ReplaceCpuids(at - kBefore, at + kAfter);
    xgetbv = reinterpret_cast<uintptr_t>(at);
    *at = kBreakpoint;
    break;
  }
  if (mprotect(code.begin, bytes, PROT_READ | PROT_EXEC) != 0) Die("mprotect failed");
  if (xgetbv == 0) Die("the constructor of oneDNN's Cpu was not found");
}

}  // namespace
