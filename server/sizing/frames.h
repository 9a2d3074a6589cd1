#pragma once

// What server and helper say to each other through a socket (trainyard/sizing/sizer.proto): the
// server asks; the helper tells of each file before it looks at it or opens it, and ends with an
// answer or an error.

#include <google/protobuf/message_lite.h>

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainyard/sizing/sizer.pb.h"

namespace trainyard {

// No message is larger.
inline constexpr uint64_t kLargestFrame = uint64_t{4} << 20;

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime FromNow(absl::Duration duration) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
}

// kUnavailable: the other end is gone, or sent what is no message of this build.
// kDeadlineExceeded: `deadline` has passed.
absl::Status Send(int socket, const google::protobuf::MessageLite& message,
                  SteadyTime deadline = SteadyTime::max());
absl::Status Receive(int socket, google::protobuf::MessageLite& message,
                     SteadyTime deadline = SteadyTime::max());

inline constexpr char kNoFiles[] = "no files";  // an identity that always holds

sizing::Answer ErrorAnswer(const absl::Status& status);

// Whether `answer`, which is no error, is one to `question`.
bool Answers(const sizing::Question& question, const sizing::Answer& answer);

// `answer`, or the error that it is.
absl::StatusOr<sizing::Answer> WithoutError(sizing::Answer answer);

}  // namespace trainyard
