#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "clients/cli/terminal.h"
#include "storage/base/clock.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::cli {

// Shows a job's feed as it comes. On a terminal one line is rewritten in place (step, bar, loss,
// rate, time left) and state changes, evaluations, checkpoints and notices scroll by above it.
// Elsewhere each is a plain line and training steps are at most one line a second. Used by one
// thread.
class ProgressView {
 public:
  ProgressView(const Terminal& terminal, Sink& sink, Clock& clock, const v1::Job& job);

  void OnItem(const v1::FeedItem& item);
  void OnLost(const absl::Status& status);
  void OnBack();
  // Takes the progress line away and says how the job ended.
  void Finish(const v1::Job& job);
  // Takes the progress line away; the job goes on.
  void Leave();

 private:
  void OnTrainMetrics(const v1::FeedItem& item);
  void UpdateRate(absl::Time time, int64_t step);
  void PrintLine(absl::Time time, const std::string& text);
  void Redraw(bool now);
  void Erase();
  void FlushPlain();
  std::string Line() const;

  const Terminal terminal_;
  Sink& sink_;
  Clock& clock_;
  const std::string job_id_;
  const int64_t total_steps_;

  int64_t step_ = 0;
  bool has_metrics_ = false;
  bool drawn_ = false;      // the progress line is on the screen
  bool unprinted_ = false;  // not on a terminal: the newest step has no line yet
  absl::Time last_shown_ = absl::InfinitePast();
  absl::Time newest_ = absl::InfinitePast();  // time of the newest item
  std::string values_;                        // "loss 0.41  lr 1e-3"
  std::string evaluation_;                    // "val loss 0.39  accuracy 91.20%"
  double samples_per_second_ = 0;
  double seconds_per_step_ = 0;                  // since rate_time_, by the times of items
  absl::Time rate_time_ = absl::InfinitePast();  // of this attempt's first step seen
  int64_t rate_step_ = 0;                        // that step
  absl::Time paced_time_;                        // when seconds_per_step_ was last updated
};

// One line for an item of a feed, or "" for train metrics: "RUNNING → SUCCEEDED: all steps done".
std::string DescribeItem(const Terminal& terminal, const v1::FeedItem& item);

// "validation loss 0.3921  accuracy 91.20%", names in a fixed order.
std::string DescribeValues(const v1::MetricPoint& point);

// "RUNNING", in the colour of the state.
std::string PaintedState(const Terminal& terminal, v1::JobState state);

}  // namespace trainyard::cli
