#include "server/sizing/sizer.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sizing/spoken_field.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

using End = SizerProcess::End;

constexpr char kProgram[] = "trainyard-sizer";

absl::StatusOr<std::string> ProgramBesideThis() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::FailedPreconditionError("cannot read /proc/self/exe");
  return (self.parent_path() / kProgram).string();
}

absl::Status Busy() {
  return absl::UnavailableError(
      "the server is busy reading the files of other submissions; try again");
}

// "spec.data.text.path: /data/a.txt", as far as it is known.
std::string WhereItWas(const std::string& spec_bytes, const std::string& file) {
  v1::JobSpec spec;
  if (file.empty() || !spec.ParseFromString(spec_bytes)) return "spec";
  return absl::StrCat(FieldNamedIn(spec, file), ": ", file);
}

// The error for a helper that did not answer in the patient lane, or crashed.
absl::Status Failure(const SizerProcess::Outcome& outcome, const std::string& spec,
                     const SizingLimits& limits) {
  const std::string where = WhereItWas(spec, outcome.file);
  const std::string look = "; check that it is whole and what the field expects";
  switch (outcome.end) {
    case End::kOutOfMemory:
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": to look at it takes more than the ", limits.memory_bytes >> 20,
                       " MiB of memory that a submission may take", look,
                       ", or give the data in smaller or simpler files (token files, for a text)"));
    case End::kOutOfTime:
      return absl::FailedPreconditionError(absl::StrCat(
          where, ": to look at it takes more than the ", absl::FormatDuration(limits.time),
          " that a submission may take; check that its file system answers, or give the data in "
          "smaller or simpler files (token files, for a text)"));
    case End::kKilled:
      return absl::UnavailableError(
          absl::StrCat(where,
                       ": the process that looked at it was killed, as happens when the "
                       "server's machine is out of memory; try again"));
    case End::kCrashed:
    case End::kAnswered:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ": the process that looked at it ended by ",
                                                 outcome.how, look,
                                                 "; if it is, this is a defect of Trainyard"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sizer>> Sizer::Start(const SizerOptions& options) {
  std::string name = options.program;
  if (name.empty()) {
    TY_ASSIGN_OR_RETURN(name, ProgramBesideThis());
  }
  // O_PATH, because a program need not be readable to be run.
  FileDescriptor program(open(name.c_str(), O_PATH | O_CLOEXEC));
  if (!program.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": ", std::strerror(errno),
                     "; the server needs it beside its own program: install both together"));
  }
  return std::unique_ptr<Sizer>(new Sizer(options, name, std::move(program)));
}

Sizer::Sizer(const SizerOptions& options, const std::string& name, FileDescriptor program)
    : options_(options),
      program_(std::move(program)),
      quick_(
          program_,
          {.name = name, .helpers = options.quick_helpers, .keep = true, .limits = options.quick}),
      patient_(program_, {.name = name, .helpers = 1, .keep = false, .limits = options.patient}),
      cache_(options.cache_bytes) {}

absl::StatusOr<SizingAnswer> Sizer::AskHelpers(const SizingQuestion& question, SteadyTime until) {
  const std::string& spec = question.spec;
  TY_ASSIGN_OR_RETURN(SizerProcess::Outcome quick, quick_.Ask(question, until));
  if (quick.end == End::kAnswered) return std::move(quick.answer);
  if (quick.end == End::kCrashed) return Failure(quick, spec, options_.quick);
  absl::StatusOr<SizerProcess::Outcome> patient = patient_.Ask(question, until);
  const bool cut_short =
      patient.ok() && patient->end == End::kOutOfTime && std::chrono::steady_clock::now() >= until;
  if (cut_short) patient = Busy();
  if (!patient.ok()) {
    return Annotate(patient.status(), WhereItWas(spec, quick.file));
  }
  if (patient->end == End::kAnswered) return std::move(patient->answer);
  return Failure(*patient, spec, options_.patient);
}

absl::StatusOr<Sizing> Sizer::Look(const std::string& key, const std::string& spec,
                                   SteadyTime until) {
  const std::shared_ptr<const KnownSizing> known = cache_.Find(key);
  absl::StatusOr<SizingAnswer> answer =
      AskHelpers({.spec = spec, .identity = known == nullptr ? "" : known->identity}, until);
  if (answer.ok() && answer->unchanged && known != nullptr) return known->sizing;
  // kUnavailable: no helper looked at the files in time, so the kept sizing may still hold.
  if (!absl::IsUnavailable(answer.status())) cache_.Remove(key);
  TY_RETURN_IF_ERROR(answer.status());
  ++made_;
  if (!answer->identity.empty()) cache_.Put(key, {answer->sizing, answer->identity});
  return std::move(answer->sizing);
}

absl::StatusOr<Sizing> Sizer::Size(const std::string& spec, SteadyTime until) {
  const SteadyTime now = std::chrono::steady_clock::now();
  until = std::min(until, now + absl::ToChronoNanoseconds(options_.longest));
  const std::string key = Sha256Hex(spec);
  const std::shared_ptr<const KnownSizing> known = cache_.Find(key);
  if (known != nullptr && known->identity == kNoFiles) return known->sizing;
  if (until <= now) return Busy();
  return rounds_.Ask(key, until, [&] { return Look(key, spec, until); });
}

void Sizer::Stop() {
  quick_.Stop();
  patient_.Stop();
}

std::vector<pid_t> Sizer::Pids() const {
  std::vector<pid_t> pids = quick_.Pids();
  for (const pid_t pid : patient_.Pids()) pids.push_back(pid);
  return pids;
}

}  // namespace trainyard
