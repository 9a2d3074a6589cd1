#pragma once

// What is to be done with a database that was restored from a backup, before servers work on it.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/revocation.h"
#include "storage/records/feed.h"
#include "storage/records/job.h"
#include "storage/records/restored_job.h"

namespace trainyard {

struct RestoreOrder {
  RestoredAs as = RestoredAs::kTheYard;
  // What was revoked since the backup, as servers wrote it down.
  std::vector<RevokedCredential> revoked;
  // Since when the oldest of these lists is kept: after the point to which the database was
  // restored, none may have all. (A younger one beside it is of a server that came later.)
  // Infinitely long ago: it does not matter.
  absl::Time revoked_since = absl::InfinitePast();
  // Revoke all tokens that people made and all keys of nodes: it is not known what was revoked.
  bool revoke_all = false;
  // The folder in which a job's checkpoints are, and what is there. Of a record of a job it has the
  // names and the uid.
  std::function<std::string(const JobRecord&)> folder_of;
  std::function<absl::StatusOr<std::vector<CheckpointRecord>>(const std::string& folder)> look;
  // Go on even if none of the checkpoints is there that the database knows of these jobs
  // ("projects/P/jobs/J"), or of any job ("all"): they begin anew.
  std::set<std::string> forget_checkpoints;
  // For how long a leader's lease must stand still until nobody is taken to lead.
  absl::Duration leader_is_gone = absl::Seconds(6);
};

struct RestoreReport {
  int64_t epoch = 0;    // of the yard: 1 until it was first restored, milliseconds since 1970 then
  int jobs = 0;         // that have not ended
  int fenced_jobs = 0;  // of these, that ran
  int64_t checkpoints = 0;          // that are there, and were known
  int64_t found_checkpoints = 0;    // that are there, and were not
  int64_t missing_checkpoints = 0;  // that were known, and are not there
  int revoked = 0;                  // credentials, that had not been
  int ended_join_tokens = 0;        // all that could have been used: how often they were is lost
  std::vector<std::string> job_folders;  // folder_of each job, sorted
};

}  // namespace trainyard
