// How long ranks of one machine take to add up gradients, beside a plain copy of as many bytes.
//
//   exchange_times RANKS MIB shared|tcp
//
// Prints one JSON object: milliseconds of a sum over all ranks (SumAcrossRanks, the median of rank
// 0), of a memcpy, and of the gathering of 8 bytes.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "executor/engine/parallel/rendezvous.h"
#include "executor/engine/sum_across_ranks.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int kRounds = 21;

// The median of what `run` takes, in milliseconds.
double MedianMs(const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  _exit(1);
}

void Measure(Rendezvous mine, int64_t mib) {
  mine.version = "exchange_times";
  absl::StatusOr<std::unique_ptr<Communicator>> gang = Meet(std::move(mine));
  Check(gang.status());
  std::vector<float> gradients(mib << 18, 1.0f), copy(gradients.size());
  std::vector<double> sums(3);
  SumAcrossRanks across(**gang, (*gang)->size());
  const PartialSum own{absl::MakeSpan(sums), absl::MakeSpan(gradients)};
  const std::vector<plan::Bucket> buckets =
      plan::CutBuckets(static_cast<int64_t>(gradients.size()), {}, (*gang)->size());
  const double sum_ms = MedianMs([&] {
    std::fill(gradients.begin(), gradients.begin() + 16, 1.0f);
    Check(across.AddSums({own}));
    for (const plan::Bucket& bucket : buckets) {
      Check(across.Reduce(bucket, {own}));
      Check(across.Gather(bucket, plan::HandingOf(bucket, (*gang)->rank()), own.gradients));
    }
  });
  int64_t values[16] = {};
  std::vector<absl::Span<char>> parts;
  for (int rank = 0; rank < (*gang)->size(); ++rank) {
    parts.emplace_back(reinterpret_cast<char*>(&values[rank]), sizeof(int64_t));
  }
  const double small_ms = MedianMs([&] { Check((*gang)->AllGather(parts)); });
  Check((*gang)->Barrier());
  if ((*gang)->rank() != 0) return;
  const double copy_ms =
      MedianMs([&] { memcpy(copy.data(), gradients.data(), gradients.size() * sizeof(float)); });
  std::cout
      << absl::StrFormat(
             "{\"sum_ms\": %.3f, \"copy_ms\": %.3f, \"small_us\": %.1f, \"description\": \"%s\"}",
             sum_ms, copy_ms, small_ms * 1e3, (*gang)->description())
      << std::endl;
}

int Main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "exchange_times RANKS MIB shared|tcp\n";
    return 64;
  }
  const int ranks = std::clamp(atoi(argv[1]), 1, 16);
  const absl::StatusOr<std::vector<Rendezvous>> meetings = LocalRendezvous(ranks);
  Check(meetings.status());
  for (Rendezvous mine : *meetings) {
    if (fork() != 0) continue;
    mine.allow_shared_memory = std::string(argv[3]) == "shared";
    for (const Rendezvous& other : *meetings) {
      if (other.rank != mine.rank) close(other.listening_fd);
    }
    Measure(mine, atoi(argv[2]));
    _exit(0);
  }
  for (const Rendezvous& mine : *meetings) close(mine.listening_fd);
  int worst = 0, status = 0;
  while (wait(&status) > 0) worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  return worst;
}

}  // namespace
}  // namespace trainyard::engine

int main(int argc, char** argv) { return trainyard::engine::Main(argc, argv); }
