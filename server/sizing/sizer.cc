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
#include "executor/facts/facts_message.h"
#include "executor/facts/spoken_field.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

using End = SizerProcess::End;

constexpr char kProgram[] = "trainyard-sizer";

// Advice is a sentence of a refusal, which shall not come late for it.
constexpr absl::Duration kLongestAdvice = absl::Seconds(5);
// That a helper takes to start, and its answer to come.
constexpr absl::Duration kOnTheWay = absl::Milliseconds(200);

absl::StatusOr<std::string> ProgramBesideThis() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::FailedPreconditionError("cannot read /proc/self/exe");
  return (self.parent_path() / kProgram).string();
}

// How long a helper may plan that is to answer by `until`.
double SecondsUntil(SteadyTime until, absl::Duration longest) {
  const absl::Duration left = absl::FromChrono(until - std::chrono::steady_clock::now());
  return absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), std::min(longest, left - kOnTheWay)));
}

absl::Status Busy() {
  return absl::UnavailableError(
      "the server is busy with the files and the plans of other submissions; try again");
}

// "spec.data.text.path: /data/a.txt", as far as it is known.
std::string WhereItWas(const std::string& spec_bytes, const SizerProcess::Outcome& outcome) {
  v1::JobSpec spec;
  if (outcome.file.empty() || !spec.ParseFromString(spec_bytes)) return "spec";
  return absl::StrCat(FieldNamedIn(spec, outcome.file), ": ", outcome.file);
}

// The error for a helper that did not answer in the patient lane, or crashed.
absl::Status Failure(const SizerProcess::Outcome& outcome, const sizing::Question& question,
                     const SizingLimits& limits) {
  const std::string where = WhereItWas(question.spec(), outcome);
  const bool plans = outcome.plans || !question.has_size();
  const std::string doing = plans ? "to plan it" : "to look at it";
  const std::string fewer = question.has_plan_layouts() ? "slots" : "slots (resources.max_slots)";
  const std::string smaller =
      plans ? absl::StrCat("ask for fewer ", fewer, " or a model of fewer layers")
            : "give the data in smaller or simpler files (token files, for a text)";
  const std::string look = "check that it is whole and what the field expects";
  switch (outcome.end) {
    case End::kOutOfMemory:
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": ", doing, " takes more than the ", limits.memory_bytes >> 20,
                       " MiB of memory that a submission may take; ",
                       plans ? "" : absl::StrCat(look, ", or "), smaller));
    case End::kOutOfTime:
      return absl::FailedPreconditionError(
          absl::StrCat(where, ": ", doing, " takes more than the ",
                       absl::FormatDuration(limits.time), " that a submission may take; ",
                       plans ? "" : "check that its file system answers, or ", smaller));
    case End::kKilled:
      return absl::UnavailableError(
          absl::StrCat(where, ": the process that was ", doing,
                       " was killed, as happens when the server's machine is out of memory; "
                       "try again"));
    case End::kCrashed:
    case End::kAnswered:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": the process that was ", doing, " ended by ", outcome.how,
                   plans ? "; this is a defect of Trainyard"
                         : absl::StrCat("; ", look, "; if it is, this is a defect of Trainyard")));
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
      planning_(
          program_,
          {.name = name, .helpers = options.planners, .keep = false, .limits = options.planning}),
      patient_(program_, {.name = name, .helpers = 1, .keep = false, .limits = options.patient}),
      cache_(options.cache_bytes) {}

SteadyTime Sizer::AtMost(SteadyTime until) const {
  return std::min(until, FromNow(options_.longest));
}

absl::StatusOr<sizing::Answer> Sizer::AskHelpers(SizerLane& first, const sizing::Question& question,
                                                 SteadyTime until) {
  if (until <= std::chrono::steady_clock::now()) return Busy();
  TY_ASSIGN_OR_RETURN(SizerProcess::Outcome quick, first.Ask(question, until));
  if (quick.end == End::kAnswered) return std::move(quick.answer);
  if (quick.end == End::kCrashed) return Failure(quick, question, first.limits());
  absl::StatusOr<SizerProcess::Outcome> patient = Busy();
  if (until > std::chrono::steady_clock::now()) patient = patient_.Ask(question, until);
  const bool cut_short =
      patient.ok() && patient->end == End::kOutOfTime && std::chrono::steady_clock::now() >= until;
  if (cut_short) patient = Busy();
  if (!patient.ok()) {
    return Annotate(patient.status(), WhereItWas(question.spec(), quick));
  }
  if (patient->end == End::kAnswered) return std::move(patient->answer);
  return Failure(*patient, question, patient_.limits());
}

absl::StatusOr<Sizing> Sizer::Look(const std::string& key, const std::string& spec,
                                   const FactsFrom& from, SteadyTime until) {
  const SteadyTime looked = std::chrono::steady_clock::now();
  const std::shared_ptr<const KnownSizing> known = cache_.Find(key).known;
  sizing::Question question;
  question.set_spec(spec);
  question.mutable_size()->set_identity(known == nullptr ? "" : known->identity);
  question.mutable_size()->set_spec_alone(from.spec_alone);
  if (from.found.has_value())
    *question.mutable_size()->mutable_facts() = facts::ToMessage(*from.found);
  absl::StatusOr<sizing::Answer> answer = AskHelpers(quick_, question, until);
  if (answer.ok() && answer->unchanged() && known != nullptr) {
    cache_.StillHolds(key, *known, looked);
    return known->sizing;
  }
  // kUnavailable: no helper looked at the files in time, so the kept sizing may still hold.
  if (!absl::IsUnavailable(answer.status())) cache_.Remove(key);
  TY_RETURN_IF_ERROR(answer.status());
  ++made_;
  sizing::Answer::Sizing& made = *answer->mutable_sizing();
  Sizing sizing{.summary = std::move(*made.mutable_summary())};
  TY_ASSIGN_OR_RETURN(sizing.facts, facts::FromMessage(made.facts()));
  if (!made.identity().empty()) cache_.Put(key, {sizing, made.identity()}, looked);
  return sizing;
}

absl::StatusOr<Sizing> Sizer::Size(const std::string& spec, SteadyTime until,
                                   const FactsFrom& from) {
  until = AtMost(until);
  std::string asked = spec;
  if (from.spec_alone) asked += " alone";
  if (from.found.has_value()) asked += facts::ToMessage(*from.found).SerializeAsString();
  const std::string key = Sha256Hex(asked);
  const SteadyTime now = std::chrono::steady_clock::now();
  const auto [known, looked] = cache_.Find(key);
  if (known != nullptr && (known->identity == kNoFiles ||
                           looked > now - absl::ToChronoNanoseconds(options_.look_holds))) {
    return known->sizing;
  }
  if (until <= now) return Busy();
  return rounds_.Ask(key, until, [&] { return Look(key, spec, from, until); });
}

absl::StatusOr<std::string> Sizer::WhatFits(const std::string& spec, const plan::DataFacts& facts,
                                            int64_t slot_bytes, SteadyTime until) {
  sizing::Question question;
  question.set_spec(spec);
  *question.mutable_what_fits()->mutable_facts() = facts::ToMessage(facts);
  question.mutable_what_fits()->set_slot_bytes(slot_bytes);
  const SteadyTime soon = FromNow(kLongestAdvice);
  TY_ASSIGN_OR_RETURN(SizerProcess::Outcome told,
                      planning_.Ask(question, std::min(AtMost(until), soon)));
  if (told.end != End::kAnswered) return Busy();
  TY_ASSIGN_OR_RETURN(sizing::Answer answer, std::move(told.answer));
  return std::move(*answer.mutable_what_fits());
}

absl::StatusOr<plan::ChosenMesh> Sizer::ChooseMesh(const std::string& spec,
                                                   const plan::DataFacts& facts, int64_t slot_bytes,
                                                   SteadyTime until) {
  until = AtMost(until);
  sizing::Question question;
  question.set_spec(spec);
  sizing::Question::ChooseMesh& asks = *question.mutable_choose_mesh();
  *asks.mutable_facts() = facts::ToMessage(facts);
  asks.set_slot_bytes(slot_bytes);
  asks.set_seconds(SecondsUntil(until, options_.longest_search));
  TY_ASSIGN_OR_RETURN(sizing::Answer answer, AskHelpers(planning_, question, until));
  sizing::Answer::Mesh& mesh = *answer.mutable_mesh();
  return plan::ChosenMesh{.fits = mesh.fits(),
                          .spec = std::move(*mesh.mutable_spec()),
                          .summary = std::move(*mesh.mutable_summary()),
                          .ended_early = mesh.ended_early(),
                          .why = std::move(*mesh.mutable_why())};
}

absl::StatusOr<std::vector<v1::LayoutPlan>> Sizer::PlanLayouts(
    const std::string& spec, const plan::DataFacts& facts,
    const std::vector<plan::JobLayout>& layouts, const plan::Rates& rates, SteadyTime until) {
  until = AtMost(until);
  sizing::Question question;
  question.set_spec(spec);
  sizing::Question::PlanLayouts& asks = *question.mutable_plan_layouts();
  *asks.mutable_facts() = facts::ToMessage(facts);
  for (const plan::JobLayout& layout : layouts) {
    sizing::Layout& one = *asks.add_layouts();
    one.set_slots(layout.slots);
    one.set_tensor(layout.group.tensor);
    one.set_pipeline(layout.group.pipeline);
  }
  asks.set_flops_per_second(rates.flops_per_second);
  asks.set_bytes_per_second(rates.bytes_per_second);
  asks.set_seconds(SecondsUntil(until, options_.longest_search));
  TY_ASSIGN_OR_RETURN(const sizing::Answer answer, AskHelpers(planning_, question, until));
  const auto& plans = answer.layouts().layouts();
  return std::vector<v1::LayoutPlan>(plans.begin(), plans.end());
}

void Sizer::Stop() {
  quick_.Stop();
  planning_.Stop();
  patient_.Stop();
}

std::vector<pid_t> Sizer::Pids() const {
  std::vector<pid_t> pids = quick_.Pids();
  for (const SizerLane* lane : {&planning_, &patient_}) {
    for (const pid_t pid : lane->Pids()) pids.push_back(pid);
  }
  return pids;
}

}  // namespace trainyard
