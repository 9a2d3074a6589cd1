#include "executor/worker/rank.h"

#include <spdlog/spdlog.h>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "executor/engine/fault.h"
#include "executor/engine/gang.h"
#include "executor/engine/parallel/rendezvous.h"
#include "executor/engine/run.h"
#include "executor/run/event_log.h"
#include "executor/run/run_directory.h"
#include "executor/worker/event_observer.h"
#include "executor/worker/exit_code.h"
#include "executor/worker/lease_watchdog.h"
#include "executor/worker/open_device.h"
#include "executor/worker/stop_signal.h"
#include "storage/base/clock.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::worker {
namespace {

engine::RunRequest RequestOf(const v1::Assignment& assignment, int threads) {
  engine::RunRequest request;
  request.spec = assignment.spec();
  if (assignment.has_restore() && !assignment.restore().uri().empty()) {
    request.restore =
        engine::RestorePoint{assignment.restore().uri(), assignment.restore().manifest_sha256()};
  }
  request.checkpoint_root = assignment.checkpoint_root();
  request.attempt = assignment.key().attempt();
  request.threads = threads;
  return request;
}

// Where the agent asks for the state, now; nothing: it does not.
std::optional<engine::RoomForState> ReadRoomForState(const run::RunDirectory& directory) {
  const absl::StatusOr<std::string> text =
      ReadFile(directory.keep_state_path(), run::kLongestKeepState);
  if (!text.ok()) return std::nullopt;
  const std::vector<std::string> words = absl::StrSplit(*text, ' ');
  engine::RoomForState room{.fd = run::kStateDescriptor};
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &room.bytes)) return std::nullopt;
  room.alone = words[1] == "alone";
  if (words.size() > (room.alone ? 3 : 2) || room.bytes < (room.alone ? 0 : 1)) return std::nullopt;
  room.stays = words[1] == "here" || room.alone;
  if (words.size() == 3) {
    for (const absl::string_view rank : absl::StrSplit(words[2], ',')) {
      if (!absl::SimpleAtoi(rank, &room.survivors.emplace_back())) return std::nullopt;
    }
  }
  return room;
}

absl::StatusOr<engine::Rendezvous> RendezvousOf(const v1::Assignment& assignment) {
  const v1::RankKey& key = assignment.key();
  if (assignment.rendezvous_secret().empty()) {
    return engine::WithFault(engine::Fault::kUnimplemented,
                             absl::UnimplementedError(absl::StrCat(
                                 "the server gives the ", assignment.world_size(),
                                 " ranks no secret to meet by: it is of a version before training "
                                 "across ranks")));
  }
  if (assignment.rank_addresses_size() != assignment.world_size() || key.rank() < 0 ||
      key.rank() >= assignment.world_size()) {
    return engine::WithFault(
        engine::Fault::kInternal,
        absl::InternalError(absl::StrCat("the assignment of rank ", key.rank(), " of ",
                                         assignment.world_size(), " names ",
                                         assignment.rank_addresses_size(), " addresses")));
  }
  engine::Rendezvous rendezvous{
      .rank = key.rank(),
      .addresses = {assignment.rank_addresses().begin(), assignment.rank_addresses().end()},
      .secret = assignment.rendezvous_secret(),
      // Whether there is a state in memory all must have been told alike.
      .version = absl::StrCat(
          "trainyard ", TRAINYARD_VERSION, ", attempt ", key.attempt(), " of ", key.job_uid(),
          assignment.kept().step() > 0
              ? absl::StrCat(" from step ", assignment.kept().step(), " in memory")
              : "")};
  engine::SetBounds(assignment.spec().parallel(), rendezvous);
  return rendezvous;
}

// `failure_told`: whether the failure that it returns was reported already.
absl::Status Train(const RankOptions& options, const run::RunDirectory& directory,
                   const v1::Assignment& assignment, run::EventWriter& events,
                   const LeaseWatchdog& lease, FileDescriptor kept_state,
                   std::unique_ptr<kernels::Device> device, bool& failure_told) {
  engine::Rendezvous rendezvous;
  std::unique_ptr<engine::Communicator> gang;
  if (assignment.world_size() > 1) {
    TY_ASSIGN_OR_FAULT(engine::Fault::kGang, rendezvous, RendezvousOf(assignment));
    TY_ASSIGN_OR_FAULT(engine::Fault::kGang, gang, engine::Meet(rendezvous));
  }
  if (device == nullptr) {
    TY_ASSIGN_OR_RETURN(device, OpenDevice(options.device, options.threads));
  }
  // Whoever reads the log of a rank that was killed sees that it got as far as this.
  spdlog::info("rank {} of {}, attempt {}: trains on {}", assignment.key().rank(),
               assignment.world_size(), assignment.key().attempt(), device->Description());
  EventObserver observer(events, directory, lease, device->Description());
  engine::RunRequest request = RequestOf(assignment, options.threads);
  request.communicator = gang.get();
  request.meet_survivors = [&rendezvous](const std::vector<int>& survivors) {
    return engine::MeetSurvivors(rendezvous, survivors);
  };
  if (assignment.kept().step() > 0) {
    request.in_memory = {.step = assignment.kept().step(),
                         .take = [&kept_state] { return std::move(kept_state); },
                         .room = options.kept_state_room};
  }
  request.room_for_state = [&directory] { return ReadRoomForState(directory); };
  const absl::Status ran = engine::Run(*device, request, observer, StopWish()).status();
  failure_told = observer.failure_told();
  return ran;
}

}  // namespace

int RunRank(const RankOptions& options, std::unique_ptr<kernels::Device> ready,
            FileDescriptor kept_state) {
  const run::RunDirectory directory(options.run_directory);
  const absl::StatusOr<v1::Assignment> assignment = directory.ReadAssignment();
  if (!assignment.ok()) {
    spdlog::error("{}", std::string(assignment.status().message()));
    return run::kExitInternal;
  }
  const auto watchdog = LeaseWatchdog::Start(directory, SystemClock());
  if (!watchdog.ok()) {
    spdlog::error("no lease: {}", std::string(watchdog.status().message()));
    return run::kExitFenced;
  }
  const auto events = run::EventWriter::Open(directory.events_path(), SystemClock());
  if (!events.ok()) {
    spdlog::error("{}", std::string(events.status().message()));
    return run::kExitStorage;
  }
  if (assignment->wish() == v1::Assignment::SUSPEND) WishStop();

  bool failure_told = false;
  const absl::Status status = Train(options, directory, *assignment, **events, **watchdog,
                                    std::move(kept_state), std::move(ready), failure_told);
  if (status.ok()) return run::kExitDone;
  if (failure_told) return ExitCodeOf(status);
  spdlog::error("{}", std::string(status.message()));
  v1::RankEvent event;
  *event.mutable_failure() = FailureOf(status);
  const absl::Status reported = (*events)->Append(std::move(event));
  if (!reported.ok()) spdlog::error("{}", std::string(reported.message()));
  return ExitCodeOf(status);
}

}  // namespace trainyard::worker
