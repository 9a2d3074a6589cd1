#pragma once

#include <cstdint>
#include <vector>

namespace trainyard::reference {

using Vec = std::vector<double>;

}  // namespace trainyard::reference
