#include "server/api/names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "storage/base/digest.h"
#include "storage/base/field_error.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kLongestShown = 200;

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(text.substr(0, kLongestShown)), "'");
}

absl::Status WrongName(absl::string_view field, absl::string_view found,
                       absl::string_view expected) {
  return FieldError(field, Shown(found), expected);
}

}  // namespace

absl::StatusOr<std::string> ParseProjectName(absl::string_view field, absl::string_view name,
                                             bool all) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  const bool good = parts.size() == 2 && parts[0] == "projects" &&
                    (IsResourceId(parts[1]) || (all && parts[1] == "-"));
  if (!good)
    return WrongName(field, name, all ? "projects/{project} or projects/-" : "projects/{project}");
  return std::string(parts[1]);
}

absl::StatusOr<JobName> ParseJobName(absl::string_view field, absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  const bool good = parts.size() == 4 && parts[0] == "projects" && parts[2] == "jobs" &&
                    IsResourceId(parts[1]) && IsResourceId(parts[3]);
  if (!good) return WrongName(field, name, "projects/{project}/jobs/{job}");
  return JobName{std::string(parts[1]), std::string(parts[3])};
}

absl::StatusOr<CheckpointName> ParseCheckpointName(absl::string_view field,
                                                   absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  constexpr absl::string_view kForm =
      "projects/{project}/jobs/{job}/checkpoints/{step, latest or best}";
  const bool good = parts.size() == 6 && parts[0] == "projects" && parts[2] == "jobs" &&
                    parts[4] == "checkpoints" && IsResourceId(parts[1]) && IsResourceId(parts[3]);
  if (!good) return WrongName(field, name, kForm);
  CheckpointName checkpoint{.job = {std::string(parts[1]), std::string(parts[3])}};
  checkpoint.best = parts[5] == "best";
  if (checkpoint.best || parts[5] == "latest") return checkpoint;
  int64_t step = 0;
  if (!absl::SimpleAtoi(parts[5], &step) || step < 0) return WrongName(field, name, kForm);
  checkpoint.step = step;
  return checkpoint;
}

namespace {

// "{collection}/{id}", with an id of hex digits.
absl::StatusOr<std::string> ParseHexName(absl::string_view field, absl::string_view name,
                                         absl::string_view collection) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  const bool good = parts.size() == 2 && parts[0] == collection && !parts[1].empty() &&
                    parts[1].size() <= 32 &&
                    parts[1].find_first_not_of("0123456789abcdef") == absl::string_view::npos;
  if (!good) return WrongName(field, name, absl::StrCat(collection, "/{id}"));
  return std::string(parts[1]);
}

}  // namespace

absl::StatusOr<std::string> ParseJoinTokenName(absl::string_view field, absl::string_view name) {
  return ParseHexName(field, name, "joinTokens");
}

absl::StatusOr<std::string> ParseTokenName(absl::string_view field, absl::string_view name) {
  return ParseHexName(field, name, "tokens");
}

absl::StatusOr<std::string> ParseNodeName(absl::string_view field, absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  bool good =
      parts.size() == 2 && parts[0] == "nodes" && !parts[1].empty() && parts[1].size() <= 63;
  if (good) {
    for (char c : parts[1]) {
      good = good && (absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '-');
    }
  }
  if (!good) return WrongName(field, name, "nodes/{node}");
  return std::string(parts[1]);
}

absl::StatusOr<int> CheckPageSize(int page_size, int normal, int most) {
  if (page_size < 0) return FieldError("page_size", page_size, absl::StrCat("0 to ", most));
  return page_size == 0 ? normal : std::min(page_size, most);
}

absl::Status CheckRequestId(absl::string_view request_id) {
  const bool printable = std::all_of(request_id.begin(), request_id.end(),
                                     [](char c) { return absl::ascii_isprint(c); });
  if (printable && request_id.size() <= 64) return absl::OkStatus();
  return WrongName("request_id", request_id, "at most 64 printable characters");
}

std::string JobIdForRequest(absl::string_view hint, absl::string_view project,
                            absl::string_view request_id) {
  const std::string digest = Sha256Hex(absl::StrCat(project, "\n", request_id));
  return JobIdWith(hint, digest.substr(0, 10));
}

std::string EtagOf(const JobRecord& job) {
  return absl::StrCat(job.uid.substr(0, 8), "-", job.version);
}

absl::StatusOr<int64_t> VersionOfEtag(absl::string_view etag, const JobRecord& job) {
  if (etag.empty()) return 0;
  absl::string_view text = etag;
  int64_t version = 0;
  if (absl::ConsumePrefix(&text, absl::StrCat(job.uid.substr(0, 8), "-")) &&
      absl::SimpleAtoi(text, &version) && version >= 1) {
    return version;
  }
  return absl::AbortedError(absl::StrCat("etag: found ", Shown(etag), ", but the job is at '",
                                         EtagOf(job), "': read it again"));
}

}  // namespace trainyard
