#pragma once

// The statement that reads a page of jobs, live and ended ones together.

#include <string>
#include <vector>

#include "storage/postgres/database.h"
#include "storage/records/job_filter.h"

namespace trainyard::postgres {

// The statement has one parameter, the number of jobs to read. Each term is written so that an
// index can serve it. `filter` must have passed CheckFilter. `months`: the first moments of the
// months that have a partition, newest first; every job is found whatever they are.
std::string ListSql(Transaction& transaction, const std::string& project,
                    const std::vector<JobFilter>& filter, const JobCursor& after,
                    const std::vector<std::string>& months);

}  // namespace trainyard::postgres
