#include "tests/unit/engine/parallel/contract.h"

namespace trainyard::engine::testing {

std::vector<Subject> Subjects() {
  return {{.name = "Memory", .host = LinkKind::kMemory}, {.name = "Tcp", .host = LinkKind::kTcp}};
}

}  // namespace trainyard::engine::testing
