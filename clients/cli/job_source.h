#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::cli {

// A job file ("-": standard input) with `sets` ("path=value") put on top, in order. Messages start
// with the file and the place, as compilers' do.
absl::StatusOr<v1::Job> ReadJob(const std::string& file, const std::vector<std::string>& sets);

// The jobs of several files, each of which may hold several (`---` between them).
struct SourcedJob {
  v1::Job job;
  std::string place;  // "sweep.yaml", or "sweep.yaml:17" where the file holds several
};
absl::StatusOr<std::vector<SourcedJob>> ReadJobs(const std::vector<std::string>& files,
                                                 const std::vector<std::string>& sets);

}  // namespace trainyard::cli
