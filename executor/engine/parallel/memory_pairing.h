#pragma once

// How two ranks that have met find out whether they can share memory, and come to share it.

#include <chrono>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "executor/engine/parallel/authentication.h"
#include "executor/engine/parallel/control_link.h"
#include "executor/engine/parallel/handover.h"
#include "executor/engine/parallel/shared_memory.h"
#include "storage/base/file.h"

namespace trainyard::engine {

// One rank's part in it. The lower rank offers the name of its Handover. The higher one makes the
// memory and sends it there with its doorbell; the lower one sends back its own doorbell; the
// higher one says "yes" over the control link once it has that. Whatever goes wrong before leads to
// "no", from whichever rank notices, so that both ends always come to the same conclusion.
class MemoryPairing {
 public:
  // The lower rank's first move; `handover` and, in all calls, `doorbell` are this rank's. Null: it
  // does not want to share memory.
  void Offer(const Handover* handover, ControlLink& control);

  // An offer or answer came over the control link. `key` is the pairing key of the two.
  void TakeMessage(const ControlMessage& message, int rank, const Digest& key,
                   const Handover* handover, int doorbell, ControlLink& control);

  // A parcel that names the other rank as its sender.
  void TakeParcel(Parcel& parcel, int rank, const Digest& key, const Handover* handover,
                  int doorbell, ControlLink& control);

  // Tries again to send what the other's queue had no room for, and gives up when nothing comes
  // back for long. Call now and then.
  void Retry(const Handover* handover, int doorbell, ControlLink& control);

  bool decided() const { return state_ == State::kShares || state_ == State::kRefused; }
  bool shares() const { return state_ == State::kShares; }
  SharedMemory TakeMemory() { return *std::move(memory_); }  // once shares()
  FileDescriptor TakeDoorbell() { return std::move(their_doorbell_); }

  // Who a parcel claims to be from; -1 if it is none of ours. Its tag is checked by TakeParcel.
  static int SenderOf(const Parcel& parcel);

 private:
  enum class State { kNew, kOffered, kSending, kSent, kShares, kRefused };

  void Refuse(ControlLink& control);
  void SendParcel(const Handover& handover, int doorbell, ControlLink& control);

  State state_ = State::kNew;
  bool makes_memory_ = false;  // the higher rank
  std::optional<SharedMemory> memory_;
  FileDescriptor memory_fd_;  // until it is sent
  FileDescriptor their_doorbell_;
  std::string their_name_;
  std::string words_;  // of the parcel to send
  std::chrono::steady_clock::time_point give_up_;
};

}  // namespace trainyard::engine
