// Random draws of the engine: starting weights and sampled tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "executor/engine/initialize.h"
#include "executor/engine/sampler.h"

namespace trainyard::engine {
namespace {

// Streams of a step's draws are small.
TEST(StreamOf, DiffersFromNameToNameAndFromThoseOfAStep) {
  std::set<uint64_t> streams;
  for (const char* name : {"", "a", "b", "ab", "transformer.wte.weight"}) {
    EXPECT_GE(StreamOf(name), uint64_t{1} << 63);
    streams.insert(StreamOf(name));
  }
  EXPECT_EQ(streams.size(), 5u);
}

TEST(PickToken, AtTemperatureZeroTakesTheLikeliestAndTheLowerOfTwo) {
  EXPECT_EQ(PickToken({1, 3, 3, 2}, {.temperature = 0}, 0.99), 1);
}

TEST(PickToken, FollowsTheProbabilities) {
  const std::vector<float> logits = {std::log(1.0f), std::log(3.0f)};  // 1/4 and 3/4
  const SampleOptions options = {.temperature = 1};
  EXPECT_EQ(PickToken(logits, options, 0.74), 1);
  EXPECT_EQ(PickToken(logits, options, 0.76), 0);
  EXPECT_EQ(PickToken(logits, options, 0.999999), 0);
}

TEST(PickToken, TopKCutsTheRest) {
  const std::vector<float> logits = {1, 1.1f, 0.9f};
  EXPECT_EQ(PickToken(logits, {.temperature = 1, .top_k = 1}, 0.999), 1);
  EXPECT_EQ(PickToken(logits, {.temperature = 1, .top_k = 2}, 0.999), 0);
}

TEST(PickToken, TopPKeepsTheFewestThatReachTheProbability) {
  // 1/2, 1/4, 1/8, 1/8 in another order.
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(1.0f),
                                     std::log(2.0f)};
  const auto pick = [&](double top_p, double uniform) {
    return PickToken(logits, {.temperature = 1, .top_p = top_p}, uniform);
  };
  for (const double uniform : {0.0, 0.5, 0.999}) EXPECT_EQ(pick(0.4, uniform), 1);
  EXPECT_EQ(pick(0.6, 0.66), 1);  // 2/3 and 1/3 of what is left
  EXPECT_EQ(pick(0.6, 0.67), 3);
  EXPECT_EQ(pick(0.8, 0.999), 0);
  EXPECT_EQ(pick(1, 0.999), 2);
  EXPECT_EQ(pick(0, 0.999), 1);
}

TEST(PickToken, TopPCountsWhatTopKAndTheTemperatureLeave) {
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), std::log(1.0f),
                                     std::log(1.0f)};
  // Of the two likeliest the first has 2/3: enough for 0.6, not for 0.7.
  EXPECT_EQ(PickToken(logits, {.temperature = 1, .top_k = 2, .top_p = 0.6}, 0.999), 0);
  EXPECT_EQ(PickToken(logits, {.temperature = 1, .top_k = 2, .top_p = 0.7}, 0.999), 1);
  // At temperature 1/2 the weights are 16, 4, 1, 1: the first has 0.73.
  EXPECT_EQ(PickToken(logits, {.temperature = 0.5, .top_p = 0.7}, 0.999), 0);
  EXPECT_EQ(PickToken(logits, {.temperature = 1, .top_p = 0.7}, 0.999), 1);
}

}  // namespace
}  // namespace trainyard::engine
