#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace trainyard::run {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `data`.
uint32_t Crc32c(absl::string_view data);

}  // namespace trainyard::run
