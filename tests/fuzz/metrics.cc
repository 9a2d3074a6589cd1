// Stored columns of metrics: whatever the bytes, decoding ends with values or an error, and what
// was decoded comes back from its own bytes.

#include <cstdint>
#include <cstdlib>

#include "storage/records/metric_block.h"
#include "storage/records/metric_codec.h"
#include "storage/records/metric_rollup.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard;
  if (size < 2) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t count = data[0] + 256U * data[1];
  const auto integers = DecodeIntegers(bytes, count);
  if (integers.ok()) {
    const auto again = DecodeIntegers(EncodeIntegers(*integers), count);
    if (!again.ok() || *again != *integers) std::abort();
  }
  const auto doubles = DecodeDoubles(bytes, count);
  if (doubles.ok()) {
    const std::string written = EncodeDoubles(*doubles);
    const auto again = DecodeDoubles(written, count);
    if (!again.ok() || EncodeDoubles(*again) != written) std::abort();
  }
  const auto block = DecodeBlock(bytes);
  if (block.ok()) {
    const auto again = DecodeBlock(EncodeBlock(*block));
    if (!again.ok() || RowsOf(*again).size() != RowsOf(*block).size()) std::abort();
  }
  const auto roll_up = DecodeRollUp(bytes);
  if (roll_up.ok()) {
    const auto again = DecodeRollUp(EncodeRollUp(*roll_up));
    if (!again.ok() || again->size() != roll_up->size()) std::abort();
  }
  return 0;
}
