#include "kernels/libraries.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/dnnl.h"

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
      return "avx512_core_amx";
    default:
      return absl::StrCat("instruction set ", static_cast<int>(isa));
  }
}

}  // namespace

std::string CpuArithmetic() {
  return absl::StrCat("oneDNN ", *CpuLibraries()[0].version, " for ",
                      NameOf(dnnl_get_effective_cpu_isa()), ", loops for ",
                      CpuDevice::SupportedTables().front()->name);
}

std::vector<Library> CpuLibraries() {
  const dnnl_version_t& version = *dnnl_version();
  return {{"oneDNN", absl::StrCat(version.major, ".", version.minor, ".", version.patch)}};
}

}  // namespace trainyard::kernels
