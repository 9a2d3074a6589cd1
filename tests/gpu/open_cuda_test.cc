// Opening a GPU where there is none, or not that one: an answer, not a crash. Also the proof that a
// program with the CUDA back end links and starts without a driver.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"

namespace trainyard::kernels {
namespace {

TEST(OpenCuda, IsUnavailableWithAReasonWhereThereIsNoGpu) {
  const auto device = OpenCuda(0);
  if (device.ok()) GTEST_SKIP() << "there is one: " << (*device)->Description();
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable) << device.status();
  EXPECT_THAT(std::string(device.status().message()),
              testing::AnyOf(
                  testing::HasSubstr("no usable GPU driver"), testing::HasSubstr("no such GPU"),
                  testing::HasSubstr("built without CUDA"), testing::HasSubstr("cannot be used")));
}

TEST(OpenCuda, RefusesAnIndexThatDoesNotExist) {
  for (const int index : {-1, 4096}) {
    EXPECT_EQ(OpenCuda(index).status().code(), absl::StatusCode::kUnavailable) << index;
  }
}

}  // namespace
}  // namespace trainyard::kernels
