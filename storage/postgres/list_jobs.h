#pragma once

// The statement that reads a page of jobs, live and ended ones together.

#include <string>
#include <vector>

#include "storage/postgres/database.h"
#include "storage/records/job_filter.h"

namespace trainyard::postgres {

// Its one parameter is how many jobs to read. Each term is put such that an index can serve it. The
// filter passed CheckFilter.
std::string ListSql(Transaction& transaction, const std::string& project,
                    const std::vector<JobFilter>& filter, const JobCursor& after);

}  // namespace trainyard::postgres
