#include "executor/engine/parallel/memory_pairing.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/wire.h"

namespace trainyard::engine {
namespace {

// A parcel's words: the sender's rank, its role, a tag over both, the name of the sender's
// Handover.
constexpr uint32_t kMemory = 1;    // memory and doorbell of the higher rank
constexpr uint32_t kDoorbell = 2;  // the doorbell of the lower rank
constexpr size_t kFieldBytes = 8;
constexpr size_t kNameBytes = 42;  // "trainyard-" and 32 digits
constexpr std::chrono::milliseconds kPatience(5000);

Digest TagOf(const Digest& key, absl::string_view fields, absl::string_view name) {
  return HmacSha256(View(key), absl::StrCat("trainyard parcel", fields, name));
}

std::string WordsOf(int rank, uint32_t role, const Digest& key, absl::string_view name) {
  std::string fields;
  AppendInteger(static_cast<uint32_t>(rank), fields);
  AppendInteger(role, fields);
  return absl::StrCat(fields, View(TagOf(key, fields, name)), name);
}

// The name at the end of a parcel's words, or "" if they are not those of the other rank.
std::string VerifiedName(const std::string& all, uint32_t role, const Digest& key) {
  absl::string_view words = all;
  const absl::string_view fields = ConsumeBytes(words, kFieldBytes);
  const absl::string_view tag = ConsumeBytes(words, sizeof(Digest));
  absl::string_view role_field = fields.substr(sizeof(uint32_t));
  if (ConsumeInteger<uint32_t>(role_field) != role) return "";
  if (!SameBytes(View(TagOf(key, fields, words)), tag)) return "";
  return std::string(words);
}

}  // namespace

int MemoryPairing::SenderOf(const Parcel& parcel) {
  if (parcel.words.size() != kFieldBytes + sizeof(Digest) + kNameBytes) return -1;
  absl::string_view words = parcel.words;
  const auto rank = ConsumeInteger<uint32_t>(words);
  return rank < uint32_t{1} << 30 ? static_cast<int>(rank) : -1;
}

void MemoryPairing::Offer(const Handover* handover, ControlLink& control) {
  state_ = State::kOffered;
  control.Send(ControlKind::kMemoryOffer, handover == nullptr ? "" : handover->name());
}

void MemoryPairing::TakeMessage(const ControlMessage& message, int rank, const Digest& key,
                                const Handover* handover, int doorbell, ControlLink& control) {
  if (message.kind == ControlKind::kMemoryOffer && state_ == State::kNew) {
    makes_memory_ = true;
    if (handover == nullptr || message.body.size() != kNameBytes) return Refuse(control);
    absl::StatusOr<SharedMemory> memory = SharedMemory::Create(memory_fd_);
    if (!memory.ok()) return Refuse(control);
    memory_.emplace(*std::move(memory));
    their_name_ = message.body;
    words_ = WordsOf(rank, kMemory, key, handover->name());
    SendParcel(*handover, doorbell, control);
  } else if (message.kind == ControlKind::kMemoryAnswer && !decided()) {
    const bool agreed = message.body == "yes" && !makes_memory_ && state_ == State::kSent;
    state_ = agreed ? State::kShares : State::kRefused;
  }
}

void MemoryPairing::TakeParcel(Parcel& parcel, int rank, const Digest& key,
                               const Handover* handover, int doorbell, ControlLink& control) {
  if (decided()) return;
  const std::string name = VerifiedName(parcel.words, makes_memory_ ? kDoorbell : kMemory, key);
  if (name.empty()) return;
  if (makes_memory_) {
    if (parcel.fds.size() != 1) return Refuse(control);
    their_doorbell_ = std::move(parcel.fds[0]);
    control.Send(ControlKind::kMemoryAnswer, "yes");
    state_ = State::kShares;
    return;
  }
  if (state_ != State::kOffered) return;
  if (handover == nullptr || parcel.fds.size() != 2) return Refuse(control);
  absl::StatusOr<SharedMemory> memory = SharedMemory::Map(parcel.fds[0].get());
  if (!memory.ok()) return Refuse(control);
  memory_.emplace(*std::move(memory));
  their_doorbell_ = std::move(parcel.fds[1]);
  their_name_ = name;
  words_ = WordsOf(rank, kDoorbell, key, handover->name());
  SendParcel(*handover, doorbell, control);
}

void MemoryPairing::SendParcel(const Handover& handover, int doorbell, ControlLink& control) {
  const std::array<int, 2> fds = {memory_fd_.get(), doorbell};
  const absl::Status sent =
      handover.Send(their_name_, words_, absl::MakeConstSpan(fds).subspan(makes_memory_ ? 0 : 1));
  const auto now = std::chrono::steady_clock::now();
  if (state_ != State::kSending) give_up_ = now + kPatience;
  if (absl::IsUnavailable(sent) && now < give_up_) {
    state_ = State::kSending;
  } else if (!sent.ok()) {
    Refuse(control);
  } else {
    state_ = State::kSent;
    memory_fd_.Reset(-1);
  }
}

void MemoryPairing::Retry(const Handover* handover, int doorbell, ControlLink& control) {
  if (state_ == State::kSending && handover != nullptr) SendParcel(*handover, doorbell, control);
  // The lower rank hears of the end from the higher one.
  if (state_ == State::kSent && makes_memory_ && std::chrono::steady_clock::now() > give_up_) {
    Refuse(control);
  }
}

void MemoryPairing::Refuse(ControlLink& control) {
  control.Send(ControlKind::kMemoryAnswer, "no");
  state_ = State::kRefused;
}

}  // namespace trainyard::engine
