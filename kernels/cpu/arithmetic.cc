#include <gnu/libc-version.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/libraries.h"

namespace trainyard::kernels {
namespace {

std::string NameOf(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
      return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      // Until 2026-11-30 the number of threads cut long sums of bf16 here.
      return "avx512_core_amx, sums by shape";
    default:
      return absl::StrCat("instruction set ", static_cast<int>(isa));
  }
}

// oneDNN sizes the blocks of its sums by the caches of a core.
std::string Caches() {
  const auto kilobytes = [](int name) { return sysconf(name) / 1024; };
  return absl::StrCat(kilobytes(_SC_LEVEL1_DCACHE_SIZE), ", ", kilobytes(_SC_LEVEL2_CACHE_SIZE),
                      " and ", kilobytes(_SC_LEVEL3_CACHE_SIZE), " KiB");
}

}  // namespace

std::map<std::string, std::string> CpuDevice::Arithmetic() const {
  return {{"device", "CPU"},
          {"loops", vectors_.name},
          {"oneDNN", *CpuLibraries()[0].version},
          {"oneDNN instructions", NameOf(dnnl_get_effective_cpu_isa())},
          {"caches", Caches()},
          {"glibc", gnu_get_libc_version()}};
}

}  // namespace trainyard::kernels
