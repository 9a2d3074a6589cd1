// NCCL is loaded at run time, and what needs no GPU of it answers.

#include "kernels/cuda/nccl_library.h"

#include <gtest/gtest.h>

#include "kernels/cuda/nccl_links.h"

namespace trainyard::kernels::cuda {
namespace {

TEST(NcclLibrary, CallsReachTheFunctionOfTheirName) {
  const absl::StatusOr<const Nccl*> nccl = LoadNccl();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status();
  int version = 0;
  EXPECT_EQ((*nccl)->GetVersion(&version), kNcclSuccess);
  EXPECT_GE(version, 21400);
  EXPECT_STREQ((*nccl)->GetErrorString(kNcclSuccess), "no error");
  EXPECT_STREQ((*nccl)->GetErrorString(kNcclInProgress), "NCCL operation in progress");
  EXPECT_EQ((*nccl)->GroupStart(), kNcclSuccess);
  EXPECT_EQ((*nccl)->GroupEnd(), kNcclSuccess);
}

// The other calls that need no GPU are those that refuse: their numbers mean what we think.
TEST(NcclLibrary, ARankThatIsNoneIsRefused) {
  const absl::StatusOr<const Nccl*> nccl = LoadNccl();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status();
  EXPECT_EQ((*nccl)->Send(nullptr, 1, kNcclBytes, 0, nullptr, nullptr), kNcclInvalidArgument);
  EXPECT_EQ((*nccl)->CommAbort(nullptr), kNcclSuccess);
}

}  // namespace
}  // namespace trainyard::kernels::cuda
