#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "clients/cli/plot.h"
#include "trainyard/v1/resources.pb.h"
#include "trainyard/v1/run.pb.h"
#include "trainyard/v1/run_services.pb.h"

namespace trainyard::cli {

// The current series of a job: one point per (step, split). An attempt that goes on from step s
// supersedes what earlier attempts reported for steps after s.
class MetricSeries {
 public:
  void Add(const v1::MetricPoint& point);
  void DropPointsAfter(int64_t step);  // forgets points past `step`

  // Names of all values, loss first.
  std::vector<std::string> Names() const;
  // Steps with `name`, as curves "train NAME" and "validation NAME".
  std::vector<Series> Curves(const std::string& name) const;

 private:
  std::map<std::pair<int64_t, int>, v1::MetricPoint> points_;  // by step and split
};

// "train" or "validation".
std::string SplitName(v1::MetricPoint::Split split);

// The header of a CSV file, and one line of it; values are written so that they read back exactly,
// and a value that a point does not have is empty.
std::string CsvHeader(const std::vector<std::string>& names);
std::string CsvLine(const v1::MetricPoint& point, const std::vector<std::string>& names);

// A whole CSV file: a line for each point, with a column for every value that any of them has.
std::string CsvFile(const std::vector<v1::AttemptMetricPoint>& points);

}  // namespace trainyard::cli
