#pragma once

// What ranks that have gone left in this node's memory for the next attempt of their jobs.

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "storage/base/file.h"
#include "trainyard/v1/executor_service.pb.h"
#include "trainyard/v1/run.pb.h"

namespace trainyard {

// The memory is freed with the agent, once a later attempt trains here, when the server says that
// it is of no use, and if none of that comes within kPatience: the other ranks of the gang may take
// a grace of five minutes to leave, and the next attempt ten to start. Not thread-safe.
class KeptStates {
 public:
  static constexpr absl::Duration kPatience = absl::Minutes(15);

  // Of a rank that is gone; `memory` is a file without a name. Empty: it left nothing. Where two
  // ranks of an attempt leave something, the later `step` counts; 0: it is not known.
  void Keep(const v1::RankKey& rank, FileDescriptor memory, int64_t step, absl::Duration now);

  // For a worker of a later attempt: what attempt `attempt` of the job left, to be read, or if that
  // is not here an empty file, the same for all, into which one of them may receive it from another
  // node. Not valid: files in memory cannot be made.
  FileDescriptor FileOf(const std::string& job_uid, int64_t attempt, absl::Duration now);

  // Frees what earlier attempts of the job left. Call it once every rank of `attempt` on this node
  // has restored its state, and the gang has had time to do so.
  void AttemptTrains(const std::string& job_uid, int64_t attempt);

  // Frees this one: no attempt will read it.
  void Free(const v1::LeftState& state);
  // What ranks of this node left, and the files into which they may have received what others did.
  std::vector<v1::LeftState> All() const;

  void DropOld(absl::Duration now);

  bool empty() const { return by_job_.empty(); }

 private:
  struct Kept {
    int64_t attempt = 0;
    FileDescriptor memory;
    int64_t step = 0;
    absl::Duration since;
    bool left = false;  // by a rank of this node
  };
  std::map<std::string, Kept> by_job_;  // by uid
};

}  // namespace trainyard
