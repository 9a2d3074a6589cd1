#pragma once

// What server and helper say to each other through a socket: the server sends a spec; the helper
// names each file before it opens it, and ends with a sizing or an error. Numbers are those of the
// machine, for both ends are of one build.

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/sizing/size_job.h"

namespace trainyard {

enum class FrameKind : uint32_t { kSpec = 1, kOpened = 2, kSizing = 3, kError = 4 };

struct Frame {
  FrameKind kind = FrameKind::kSpec;
  std::string payload;
};

// No frame is larger.
inline constexpr uint64_t kLargestFrame = uint64_t{4} << 20;

using SteadyTime = std::chrono::steady_clock::time_point;

// kUnavailable: the other end is gone, or says what no build says. kDeadlineExceeded.
absl::Status SendFrame(int socket, FrameKind kind, absl::string_view payload,
                       SteadyTime deadline = SteadyTime::max());
absl::StatusOr<Frame> ReceiveFrame(int socket, SteadyTime deadline = SteadyTime::max());

std::string EncodeSizing(const Sizing& sizing);
std::string EncodeError(const absl::Status& status);

// kUnavailable: `frame` is no answer.
absl::StatusOr<absl::StatusOr<Sizing>> DecodeAnswer(const Frame& frame);

}  // namespace trainyard
