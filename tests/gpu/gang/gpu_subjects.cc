#include "tests/gpu/gang/gpu_rank.h"
#include "tests/gpu/gang/rank_device.h"
#include "tests/unit/engine/parallel/contract.h"

namespace trainyard::engine::testing {

std::vector<Subject> Subjects() {
  return {{.name = "Gpus", .most_ranks = GpusHere, .meeting = [](CommunicatorBody body) {
             return MeetingOnGpus([body](GpuRank& rank, const Gang::Say& say) {
               return body(*OverGpus(rank), say);
             });
           }}};
}

}  // namespace trainyard::engine::testing
