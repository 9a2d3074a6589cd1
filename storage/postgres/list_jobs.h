#pragma once

// The statement that reads a page of jobs, live and ended ones together.

#include <string>
#include <vector>

#include "storage/postgres/database.h"
#include "storage/records/job_filter.h"

namespace trainyard::postgres {

// Its one parameter is how many jobs to read. Each term is put such that an index can serve it. The
// filter passed CheckFilter. `months`: the first moments of those that have a partition, newest
// first; whichever they are, every job is found.
std::string ListSql(Transaction& transaction, const std::string& project,
                    const std::vector<JobFilter>& filter, const JobCursor& after,
                    const std::vector<std::string>& months);

}  // namespace trainyard::postgres
