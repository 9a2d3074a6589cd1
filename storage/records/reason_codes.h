#pragma once

// Every reason a job can show. Stable: clients match on them.

namespace trainyard::reason {

// A moment ago: the scheduler has not said yet why it waits.
inline constexpr char kSubmitted[] = "SUBMITTED";
inline constexpr char kWaitingForSlots[] = "WAITING_FOR_SLOTS";  // fits, but slots are taken
inline constexpr char kBehindOthers[] = "BEHIND_OTHERS";         // slots are kept for a job ahead
inline constexpr char kProjectLimit[] = "PROJECT_LIMIT";  // its project has the slots that it may
inline constexpr char kFitsNoNode[] = "FITS_NO_NODE";  // no set of present nodes could ever hold it
inline constexpr char kNoNodes[] = "NO_NODES";         // no executor is connected
inline constexpr char kBackoff[] = "BACKOFF";          // waits before a restart
inline constexpr char kPlaced[] = "PLACED";            // slots are given, processes start
inline constexpr char kRunning[] = "RUNNING";
inline constexpr char kResizing[] = "RESIZING";  // goes on with other slots, or in another layout
inline constexpr char kPausedByUser[] = "PAUSED_BY_USER";
inline constexpr char kResumedByUser[] = "RESUMED_BY_USER";
inline constexpr char kPreempted[] = "PREEMPTED";
inline constexpr char kNodeDrained[] = "NODE_DRAINED";
inline constexpr char kNodeCordoned[] =
    "NODE_CORDONED";  // its node takes no work; it had not begun
inline constexpr char kCancelledByUser[] = "CANCELLED_BY_USER";
inline constexpr char kFinished[] = "FINISHED";
inline constexpr char kStoppedEarly[] = "STOPPED_EARLY";  // finished by evaluation.early_stopping
inline constexpr char kRankFailed[] = "RANK_FAILED";      // a rank failed; see failure
inline constexpr char kNonFinite[] = "NON_FINITE";        // loss or gradient became NaN or infinite
inline constexpr char kRolledBack[] =
    "ROLLED_BACK";                                // the same, and training.on_non_finite goes on
inline constexpr char kNodeLost[] = "NODE_LOST";  // a node's lease ended
inline constexpr char kRestored[] = "RESTORED";   // the yard was restored from a backup
inline constexpr char kInterrupted[] =
    "INTERRUPTED";  // a worker was told to leave by somebody else
inline constexpr char kRestartsSpent[] = "RESTARTS_SPENT";  // retryable, but the budget is used up

}  // namespace trainyard::reason
