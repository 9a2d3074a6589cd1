#pragma once

// What server and helper say to each other through a socket: the server sends a question; the
// helper names each file before it looks at it or opens it, and ends with an answer or an error.
// Numbers are those of the machine, for both ends are of one build.

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/sizing/size_job.h"

namespace trainyard {

enum class FrameKind : uint32_t {
  kQuestion = 1,
  kOpened = 2,
  kSizing = 3,
  kError = 4,
  kUnchanged = 5
};

struct Frame {
  FrameKind kind = FrameKind::kQuestion;
  std::string payload;
};

// No frame is larger.
inline constexpr uint64_t kLargestFrame = uint64_t{4} << 20;

using SteadyTime = std::chrono::steady_clock::time_point;

// kUnavailable: the other end is gone, or sent what is no frame of this build. kDeadlineExceeded:
// `deadline` has passed.
absl::Status SendFrame(int socket, FrameKind kind, absl::string_view payload,
                       SteadyTime deadline = SteadyTime::max());
absl::StatusOr<Frame> ReceiveFrame(int socket, SteadyTime deadline = SteadyTime::max());

struct SizingQuestion {
  std::string spec;      // serialized, from ResolveSpec
  std::string identity;  // of the files of a sizing that is known; empty: none is known
};
struct SizingAnswer {
  bool unchanged = false;  // the files are still those of the question's identity; no sizing
  Sizing sizing;
  // Of the files that the sizing is made of; empty: they may change unseen.
  std::string identity;
};
inline constexpr char kNoFiles[] = "no files";  // an identity that always holds

std::string EncodeQuestion(const SizingQuestion& question);
absl::StatusOr<SizingQuestion> DecodeQuestion(const Frame& frame);

std::string EncodeSizing(const Sizing& sizing, const std::string& identity);
std::string EncodeError(const absl::Status& status);

// kUnavailable: `frame` is no answer.
absl::StatusOr<absl::StatusOr<SizingAnswer>> DecodeAnswer(const Frame& frame);

}  // namespace trainyard
