#include "clients/cli/progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "clients/cli/format.h"
#include "clients/cli/shown.h"
#include "storage/base/printable.h"

namespace trainyard::cli {
namespace {

constexpr absl::Duration kPlainEvery = absl::Seconds(1);
constexpr absl::Duration kRedrawEvery = absl::Milliseconds(100);

std::string FormatValue(const std::string& name, double value) {
  return name == "accuracy" ? FormatPercent(value) : FormatMetric(value);
}

std::string Bar(const Terminal& terminal, double fraction, int width) {
  const int full = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * width));
  std::string done, rest;
  for (int i = 0; i < full; ++i) done += terminal.unicode ? "━" : "#";
  for (int i = full; i < width; ++i) rest += terminal.unicode ? "─" : ".";
  return absl::StrCat(Paint(terminal, Color::kCyan, done), Paint(terminal, Color::kDim, rest));
}

std::string Arrow(const Terminal& terminal) { return terminal.unicode ? " → " : " -> "; }

Color ColorOf(v1::JobState state) {
  switch (state) {
    case v1::SUCCEEDED:
      return Color::kGreen;
    case v1::FAILED:
      return Color::kRed;
    case v1::CANCELLED:
    case v1::CANCELLING:
    case v1::SUSPENDING:
    case v1::SUSPENDED:
      return Color::kYellow;
    case v1::RUNNING:
      return Color::kCyan;
    default:
      return Color::kPlain;
  }
}

}  // namespace

std::string PaintedState(const Terminal& terminal, v1::JobState state) {
  return Paint(terminal, ColorOf(state), v1::JobState_Name(state));
}

std::string DescribeValues(const v1::MetricPoint& point) {
  std::vector<std::string> parts;
  for (const char* name :
       {"loss", "accuracy", "auc", "best_auc", "perplexity", "bits_per_byte", "ema_decay"}) {
    const auto found = point.values().find(name);
    if (found != point.values().end()) {
      parts.push_back(absl::StrCat(name, " ", FormatValue(name, found->second)));
    }
  }
  return absl::StrJoin(parts, "  ");
}

std::string DescribeItem(const Terminal& terminal, const v1::FeedItem& raw) {
  const v1::FeedItem item = Shown(raw);
  switch (item.what_case()) {
    case v1::FeedItem::kState: {
      const auto& change = item.state();
      const std::string to = PaintedState(terminal, change.to());
      const std::string& why = change.reason().message();
      if (change.from() == v1::JOB_STATE_UNSPECIFIED) {
        return absl::StrCat("submitted", why.empty() ? "" : ": ", why);
      }
      const std::string from =
          change.from() == change.to()
              ? ""
              : absl::StrCat(v1::JobState_Name(change.from()), Arrow(terminal));
      return absl::StrCat(from, to, why.empty() ? "" : ": ", why);
    }
    case v1::FeedItem::kMetrics:
      if (item.metrics().split() != v1::MetricPoint::VALIDATION) return "";
      return absl::StrCat("step ", FormatCount(item.metrics().step()), "  validation ",
                          DescribeValues(item.metrics()));
    case v1::FeedItem::kCheckpoint:
      return absl::StrCat("step ", FormatCount(item.checkpoint().step()), "  checkpoint ",
                          item.checkpoint().uri(), " (", FormatBytes(item.checkpoint().bytes()),
                          ")");
    case v1::FeedItem::kAttemptStarted: {
      const auto& started = item.attempt_started();
      return absl::StrCat(
          "attempt ", item.attempt(),
          started.step() == 0 ? " starts"
                              : absl::StrCat(" goes on from step ", FormatCount(started.step())),
          started.nodes().empty() ? "" : " on ", absl::StrJoin(started.nodes(), ", "));
    }
    case v1::FeedItem::kNotice: {
      const v1::Notice& notice = item.notice().notice();
      const bool warning = notice.severity() == v1::Notice::WARNING;
      return Paint(terminal, warning ? Color::kYellow : Color::kPlain,
                   absl::StrCat(warning ? "warning" : "note", " (rank ", item.notice().rank(),
                                "): ", notice.message()));
    }
    case v1::FeedItem::WHAT_NOT_SET:
      return "";
  }
  return "";
}

ProgressView::ProgressView(const Terminal& terminal, Sink& sink, Clock& clock, const v1::Job& job)
    : terminal_(terminal),
      sink_(sink),
      clock_(clock),
      job_id_(LastSegment(job.name())),
      total_steps_(job.total_steps() > 0 ? job.total_steps() : job.plan().total_steps()) {}

void ProgressView::OnItem(const v1::FeedItem& item) {
  newest_ = TimeOf(item.time());
  if (item.has_metrics() && item.metrics().split() == v1::MetricPoint::TRAIN) {
    OnTrainMetrics(item);
    return;
  }
  if (item.has_metrics()) evaluation_ = absl::StrCat("val ", DescribeValues(item.metrics()));
  if (item.has_attempt_started()) {
    step_ = item.attempt_started().step();
    rate_time_ = absl::InfinitePast();
  }
  const std::string text = DescribeItem(terminal_, item);
  if (!text.empty()) PrintLine(newest_, text);
}

void ProgressView::OnTrainMetrics(const v1::FeedItem& item) {
  const v1::MetricPoint& point = item.metrics();
  step_ = point.step();
  has_metrics_ = true;
  values_ = DescribeValues(point);
  const auto rate = point.values().find("samples_per_second");
  if (rate != point.values().end() && std::isfinite(rate->second) && rate->second > 0) {
    samples_per_second_ =
        samples_per_second_ == 0 ? rate->second : samples_per_second_ * 0.9 + rate->second * 0.1;
  }
  UpdateRate(newest_, step_);
  unprinted_ = true;
  if (terminal_.interactive) {
    Redraw(false);
  } else if (clock_.Now() - last_shown_ >= kPlainEvery) {
    FlushPlain();
  }
}

// Updates the time per step since the first step of the attempt. Evaluations and checkpoints are
// included, since the remaining steps will have them, too. Of steps whose items are less than a
// second apart only the first updates it.
void ProgressView::UpdateRate(absl::Time time, int64_t step) {
  if (rate_time_ == absl::InfinitePast() || step <= rate_step_) {
    rate_time_ = paced_time_ = time;
    rate_step_ = step;
    return;
  }
  if (time - paced_time_ < absl::Seconds(1)) return;
  paced_time_ = time;
  seconds_per_step_ =
      absl::ToDoubleSeconds(time - rate_time_) / static_cast<double>(step - rate_step_);
}

void ProgressView::FlushPlain() {
  if (!unprinted_ || terminal_.interactive) return;
  unprinted_ = false;
  last_shown_ = clock_.Now();
  sink_.Write(absl::StrCat(Line(), "\n"));
}

std::string ProgressView::Line() const {
  std::vector<std::string> parts;
  const std::string steps =
      total_steps_ > 0 ? absl::StrCat("step ", FormatCount(step_), "/", FormatCount(total_steps_))
                       : absl::StrCat("step ", FormatCount(step_));
  if (!values_.empty()) parts.push_back(values_);
  if (terminal_.interactive && !evaluation_.empty()) parts.push_back(evaluation_);
  if (samples_per_second_ > 0) {
    parts.push_back(absl::StrCat(FormatCount(std::llround(samples_per_second_)), " samples/s"));
  }
  if (seconds_per_step_ > 0 && total_steps_ > step_) {
    const double left = seconds_per_step_ * static_cast<double>(total_steps_ - step_);
    parts.push_back(absl::StrCat(FormatClock(absl::Seconds(left)), " left"));
  }
  if (!terminal_.interactive) {
    return absl::StrCat(steps, parts.empty() ? "" : "  ", absl::StrJoin(parts, "  "));
  }
  const double fraction =
      total_steps_ > 0 ? static_cast<double>(step_) / static_cast<double>(total_steps_) : 0;
  const std::string head = absl::StrCat(job_id_, "  ", steps);
  const std::string tail = absl::StrJoin(parts, "  ");
  // The bar gets the columns that the words leave.
  const int room = terminal_.width - 1 - DisplayWidth(head) - DisplayWidth(tail) - 4;
  const std::string bar = total_steps_ > 0 && room >= 6
                              ? absl::StrCat(Bar(terminal_, fraction, std::min(room, 24)), "  ")
                              : "";
  return Clip(terminal_, absl::StrCat(head, "  ", bar, tail), terminal_.width - 1);
}

void ProgressView::Erase() {
  if (drawn_) sink_.Write("\r\x1b[K");
  drawn_ = false;
}

void ProgressView::Redraw(bool now) {
  if (!terminal_.interactive || !has_metrics_) return;
  if (!now && drawn_ && clock_.Now() - last_shown_ < kRedrawEvery) return;
  last_shown_ = clock_.Now();
  // In one write: a line that is erased by one write and drawn by another flickers.
  sink_.Write(absl::StrCat("\r\x1b[K", Line()));
  drawn_ = true;
  unprinted_ = false;
}

void ProgressView::PrintLine(absl::Time time, const std::string& text) {
  FlushPlain();
  const bool was_drawn = drawn_;
  Erase();
  const std::string stamp = absl::FormatTime("%H:%M:%S", time, absl::LocalTimeZone());
  sink_.Write(absl::StrCat(Paint(terminal_, Color::kDim, stamp), "  ", Indented(text), "\n"));
  if (was_drawn) Redraw(true);
}

void ProgressView::OnLost(const absl::Status& status) {
  PrintLine(clock_.Now(), Paint(terminal_, Color::kYellow,
                                absl::StrCat("connection lost (", EscapedLine(status.message()),
                                             "); the job goes on, trying again")));
}

void ProgressView::OnBack() { PrintLine(clock_.Now(), "connected again"); }

void ProgressView::Finish(const v1::Job& raw) {
  const v1::Job job = Shown(raw);
  FlushPlain();
  Erase();
  std::string text = absl::StrCat(job_id_, " ", PaintedState(terminal_, job.state()));
  if (job.state() == v1::FAILED) {
    const std::string& why =
        job.failure().message().empty() ? job.reason().message() : job.failure().message();
    absl::StrAppend(&text, ": ", why);
    if (!job.failed_node().empty()) {
      absl::StrAppend(&text, " (rank ", job.failed_rank(), " on ", job.failed_node(), ")");
    }
  } else {
    absl::StrAppend(&text, " at step ", FormatCount(job.step()));
    if (job.has_start_time() && job.has_end_time()) {
      const absl::Duration took = TimeOf(job.end_time()) - TimeOf(job.start_time());
      absl::StrAppend(&text, " after ", FormatClock(took));
    }
    if (!evaluation_.empty()) absl::StrAppend(&text, "  ", evaluation_);
  }
  sink_.Write(absl::StrCat(Indented(text), "\n"));
}

void ProgressView::Leave() {
  FlushPlain();
  Erase();
}

}  // namespace trainyard::cli
