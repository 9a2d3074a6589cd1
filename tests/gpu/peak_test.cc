#include "kernels/cuda/peak.h"

#include <gtest/gtest.h>

namespace trainyard::kernels::cuda {
namespace {

TEST(PeakFlops, AreThoseOfTheDataSheets) {
  EXPECT_EQ(PeakFlops("NVIDIA H100 80GB HBM3", DType::kBF16), 989e12);
  EXPECT_EQ(PeakFlops("NVIDIA H100 PCIe", DType::kF16), 756e12);
  EXPECT_EQ(PeakFlops("NVIDIA H200", DType::kF32), 67e12);
  EXPECT_EQ(PeakFlops("NVIDIA A100-SXM4-80GB", DType::kBF16), 312e12);
  EXPECT_EQ(PeakFlops("NVIDIA L40S", DType::kBF16), 362e12);
  EXPECT_EQ(PeakFlops("NVIDIA L4", DType::kBF16), 121e12);
  EXPECT_EQ(PeakFlops("NVIDIA A10G", DType::kBF16), 70e12);
  EXPECT_EQ(PeakFlops("NVIDIA GB200", DType::kBF16), 2250e12);
  EXPECT_EQ(PeakFlops("NVIDIA RTX A1000", DType::kBF16), 0);
  EXPECT_EQ(PeakFlops("NVIDIA RTX A4000", DType::kBF16), 0);
  EXPECT_EQ(PeakFlops("NVIDIA H100 80GB HBM3 MIG 1g.10gb", DType::kBF16), 0);
  EXPECT_EQ(PeakFlops("NVIDIA GeForce RTX 4090 Laptop GPU", DType::kBF16), 0);
  EXPECT_EQ(PeakFlops("emulated by the host", DType::kBF16), 0);
}

}  // namespace
}  // namespace trainyard::kernels::cuda
