// Operator new counts in this program, which therefore holds nothing else.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "executor/data/open_dataset.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/data/files.h"
#include "tests/unit/data/images/encoders.h"

namespace {

std::atomic<int64_t> taken = 0;

void* Take(size_t bytes) {
  ++taken;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return Take(bytes); }
void* operator new[](size_t bytes) { return Take(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace trainyard::data {
namespace {

TEST(ImageFiles, AreReadWithoutTakingMemoryOnceEachWasSeen) {
  const Folder folder;
  v1::JobSpec spec;
  spec.mutable_model()->mutable_convnet()->add_stages()->set_channels(4);
  spec.mutable_data()->mutable_webdataset()->add_train(
      folder.Write("images.tar", SampleArchive(12)));
  spec.mutable_data()->mutable_webdataset()->mutable_transform()->set_size(16);
  spec.mutable_training()->set_steps(1);
  spec.mutable_training()->set_batch_size(1);
  spec.mutable_optimizer()->mutable_sgd();
  const auto resolved = plan::ResolveSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const auto dataset = OpenDataset(resolved->data(), 0);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<int64_t> samples = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<int64_t> epochs(10, 0);
  std::vector<uint8_t> inputs(10 * 768);
  std::vector<int32_t> targets(10);
  const auto fill = [&] {
    return (*dataset)->FillForTraining(1, samples, epochs, inputs.data(), targets.data());
  };
  for (epochs[0] = 0; epochs[0] < 40; ++epochs[0]) ASSERT_TRUE(fill().ok());
  const int64_t before = taken;
  for (epochs[0] = 0; epochs[0] < 40; ++epochs[0]) ASSERT_TRUE(fill().ok());
  EXPECT_EQ(taken - before, 0);
}

}  // namespace
}  // namespace trainyard::data
