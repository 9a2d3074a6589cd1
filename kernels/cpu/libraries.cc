#include "kernels/libraries.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/dnnl.h"

namespace trainyard::kernels {

std::vector<Library> CpuLibraries() {
  const dnnl_version_t& version = *dnnl_version();
  return {{"oneDNN", absl::StrCat(version.major, ".", version.minor, ".", version.patch)}};
}

}  // namespace trainyard::kernels
