#include "executor/agent/spool.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "executor/run/plain_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kEventsPerBatch = 256;
constexpr int64_t kBytesPerBatch = int64_t{1} << 20;  // gRPC takes 4 MiB in one message
constexpr size_t kBatchesInFlight = 8;
constexpr int64_t kFreeBytes = int64_t{8} << 20;  // acknowledged bytes that are freed at a time

}  // namespace

Spool::Spool(const run::RunDirectory& directory, v1::RankKey key)
    : directory_(directory), key_(std::move(key)), reader_(directory.events_path()) {
  const absl::StatusOr<std::string> text = ReadFile(directory_.acked_path(), 100);
  const std::vector<std::string> parts = absl::StrSplit(text.ok() ? *text : "", ' ');
  run::EventPosition position;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &position.sequence) ||
      !absl::SimpleAtoi(parts[1], &position.offset) || position.sequence < 0 ||
      position.offset < 0) {
    return;  // from the beginning: the server skips what it has
  }
  acked_ = position.sequence;
  refused_ = parts[2] == "refused";
  done_ = refused_ || parts[2] == "done";
  std::error_code error;
  const auto size = std::filesystem::file_size(directory_.events_path(), error);
  if (!error && position.offset <= static_cast<int64_t>(size)) {
    acked_position_ = position;
    has_begun_ = has_restored_ = has_metrics_ = position.sequence > 0;
  }
  reader_ = run::EventReader(directory_.events_path(), acked_position_);
}

absl::StatusOr<std::optional<v1::EventBatch>> Spool::NextBatch() {
  while (!done_ && in_flight_.size() < kBatchesInFlight) {
    TY_ASSIGN_OR_RETURN(std::vector<v1::RankEvent> events,
                        reader_.Read(kEventsPerBatch, kBytesPerBatch));
    if (events.empty()) return std::nullopt;
    has_begun_ = true;
    v1::EventBatch batch;
    Sent sent{.end = reader_.position()};
    for (v1::RankEvent& event : events) {
      if (event.has_exited() && !ended_) {
        // If this were sent, the server would give the slot away while the process runs.
        Rewind();
        return absl::DataLossError(absl::StrCat(directory_.events_path(), ": event ",
                                                event.sequence(),
                                                " is an end that no agent wrote"));
      }
      has_restored_ = has_restored_ || event.has_restored();
      has_metrics_ = has_metrics_ || event.has_metrics();
      has_state_ = has_state_ || event.failure().has_state();
      if (event.finished().kept()) kept_step_ = event.finished().step();
      sent.last = sent.last || event.has_exited();
      if (event.sequence() > acked_) *batch.add_events() = std::move(event);
    }
    sent_ = std::max(sent_, sent.end.sequence);
    in_flight_.push_back(sent);
    if (batch.events().empty()) {  // the server has all of it
      Acknowledge(acked_, false);
      continue;
    }
    *batch.mutable_key() = key_;
    return batch;
  }
  return std::nullopt;
}

void Spool::Acknowledge(int64_t sequence, bool fenced) {
  acked_ = std::max(acked_, sequence);
  if (fenced && !done_) done_ = refused_ = unsaved_ = true;
  while (!in_flight_.empty() && in_flight_.front().end.sequence <= acked_) {
    acked_position_ = in_flight_.front().end;
    if (in_flight_.front().last) {
      ended_ = acked_position_.sequence == acked_;
      done_ = done_ || ended_;
    }
    unsaved_ = true;
    in_flight_.pop_front();
  }
}

bool Spool::Reopen() {
  if (!refused_) return false;
  done_ = refused_ = false;
  ended_ = end_written_;
  unsaved_ = true;
  Rewind();
  return true;
}

void Spool::Rewind() {
  in_flight_.clear();
  reader_ = run::EventReader(directory_.events_path(), acked_position_);
}

absl::Status Spool::AppendLast(const std::vector<v1::RankEvent>& extra,
                               const v1::RankEvent::Exited& exited, Clock& clock) {
  TY_RETURN_IF_ERROR(MakeDirectories(directory_.path(), 0700));
  std::error_code error;
  const auto size = std::filesystem::file_size(directory_.events_path(), error);
  const int64_t bytes = error ? 0 : static_cast<int64_t>(size);
  if (error || bytes < acked_position_.offset) {
    acked_position_ = {.offset = std::min(bytes, acked_position_.offset), .sequence = acked_};
    Rewind();
  }
  run::EventReader reader(directory_.events_path(), acked_position_);
  bool has_exited = false;
  for (;;) {
    const auto events = reader.Read(kEventsPerBatch, kBytesPerBatch);
    if (!events.ok() && !absl::IsDataLoss(events.status())) return events.status();
    if (!events.ok() || events->empty()) break;
    for (const v1::RankEvent& event : *events) has_exited = has_exited || event.has_exited();
  }
  if (has_exited || done_) {
    ended_ = true;
    end_written_ = has_exited;
    return absl::OkStatus();
  }
  run::EventPosition end = reader.position();
  // The server would take an event whose number was used before for the earlier one.
  end.sequence = std::max({end.sequence, acked_, sent_});
  TY_ASSIGN_OR_RETURN(const auto writer,
                      run::EventWriter::OpenAt(directory_.events_path(), clock, end));
  std::vector<v1::RankEvent> all = extra;
  *all.emplace_back().mutable_exited() = exited;
  for (v1::RankEvent& event : all) {
    const absl::Status appended = writer->Append(std::move(event));
    if (appended.ok()) continue;
    // All or none: the next call would write again what is there already.
    TY_RETURN_IF_ERROR(run::EventWriter::OpenAt(directory_.events_path(), clock, end).status());
    return appended;
  }
  ended_ = end_written_ = true;
  return absl::OkStatus();
}

absl::Status Spool::Save() {
  if (!unsaved_) return absl::OkStatus();
  const std::string text = absl::StrCat(acked_position_.sequence, " ", acked_position_.offset,
                                        refused_ ? " refused"
                                        : done_  ? " done"
                                                 : " open");
  // Without fsync: after a crash of the machine an older mark costs only sending again.
  TY_RETURN_IF_ERROR(run::ReplacePlainFile(directory_.acked_path(), text));
  unsaved_ = false;
  if (acked_position_.offset - freeable_ >= kFreeBytes) FreeAcknowledged();
  return absl::OkStatus();
}

void Spool::FreeAcknowledged() {
  const FileDescriptor fd(open(directory_.events_path().c_str(), O_WRONLY | O_CLOEXEC));
  // Punching a hole leaves offsets as they are. A file system without holes keeps the whole log.
  if (fd.valid() && freeable_ > 0) {
    fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, freeable_);
  }
  freeable_ = acked_position_.offset;
}

}  // namespace trainyard
