#include "executor/run/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace trainyard::run {
namespace {

// Examples of RFC 3720, appendix B.4.
TEST(Crc32cTest, AgreesWithTheStandard) {
  std::string rising(32, '\0');
  for (int i = 0; i < 32; ++i) rising[i] = static_cast<char>(i);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(rising), 0x46DD794Eu);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);  // one round of eight and a rest
  EXPECT_EQ(Crc32c(""), 0u);
}

}  // namespace
}  // namespace trainyard::run
