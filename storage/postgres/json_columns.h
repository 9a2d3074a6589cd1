#pragma once

// Records that are JSON in a column, since they are read and written whole. What a version adds has
// a default where older rows have none.

#include <optional>
#include <pqxx/pqxx>
#include <string>

#include "storage/records/job.h"

namespace trainyard::postgres {

std::optional<std::string> FailureJson(const std::optional<FailureRecord>& failure);
std::optional<FailureRecord> FailureIn(const pqxx::field& column);

std::optional<std::string> ResizeJson(const std::optional<ResizeRecord>& resize);
std::optional<ResizeRecord> ResizeIn(const pqxx::field& column);

}  // namespace trainyard::postgres
