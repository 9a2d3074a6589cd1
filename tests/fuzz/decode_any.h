#pragma once

// What the targets of JPEG and PNG share.

#include <cstdint>

#include "absl/types/span.h"
#include "executor/data/images/decoder.h"

namespace trainyard::data {

// Decodes a part of `file` that the two bytes `choices` choose, and checks what FormatDecoder
// promises.
void DecodeAny(FormatDecoder& decoder, const uint8_t* choices, absl::Span<const uint8_t> file);

}  // namespace trainyard::data
