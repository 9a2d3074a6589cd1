#include "server/api/project_facts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/facts/facts_message.h"
#include "storage/base/clock.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// A sweep of hundreds of jobs reads its project once, and looks at its files once.
constexpr absl::Duration kKept = absl::Seconds(1);
constexpr size_t kMostKept = 1000;

template <typename Entries>
void MakeRoom(Entries& entries) {
  if (entries.size() >= kMostKept) entries.clear();
}

// What of a spec says which files are read, and how.
std::string FilesOf(const v1::JobSpec& spec) {
  v1::JobSpec part;
  *part.mutable_model() = spec.model();
  *part.mutable_data() = spec.data();
  *part.mutable_fine_tune() = spec.fine_tune();
  return part.SerializeAsString();
}

}  // namespace

absl::StatusOr<std::string> ProjectFacts::UserOf(const std::string& project) {
  const absl::Duration now = SystemClock().SinceBoot();
  {
    absl::MutexLock lock(&mu_);
    const auto known = users_.find(project);
    if (known != users_.end() && now - known->second.read < kKept) return known->second.unix_user;
  }
  const absl::StatusOr<ProjectRecord> found = store_.FindProject(project);
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  const std::string user = found.ok() ? found->unix_user : "";
  absl::MutexLock lock(&mu_);
  MakeRoom(users_);
  users_[project] = {.unix_user = user, .read = now};
  return user;
}

absl::StatusOr<FactsFrom> ProjectFacts::Of(const JobRecord& job, absl::Time until,
                                           absl::Status& looked) {
  v1::LookRequest request;
  TY_ASSIGN_OR_RETURN(*request.mutable_unix_user(), UserOf(job.project));
  if (request.unix_user().empty()) return FactsFrom{};
  TY_CHECK(request.mutable_spec()->ParseFromString(job.spec), "a spec that was just serialized");
  const std::string key =
      Sha256Hex(absl::StrCat(request.unix_user(), " ", FilesOf(request.spec())));
  const absl::Duration now = SystemClock().SinceBoot();
  {
    absl::MutexLock lock(&mu_);
    const auto found = found_.find(key);
    if (found != found_.end() && now - found->second.looked < kKept) {
      return FactsFrom{.spec_alone = true, .found = found->second.facts};
    }
  }
  bool unseen = false;
  const absl::StatusOr<v1::DataFacts> told = look_ == nullptr
                                                 ? absl::UnavailableError("no node looks at files")
                                                 : look_(request, until, unseen);
  if (!told.ok()) {
    looked = told.status();
    const bool declared_may_do =
        unseen || absl::IsUnavailable(looked) || absl::IsFailedPrecondition(looked);
    if (!declared_may_do) return looked;
    return FactsFrom{.spec_alone = true};
  }
  FactsFrom from{.spec_alone = true};
  TY_ASSIGN_OR_RETURN(from.found, facts::FromMessage(*told));
  absl::MutexLock lock(&mu_);
  MakeRoom(found_);
  found_[key] = {.facts = *from.found, .looked = SystemClock().SinceBoot()};
  return from;
}

}  // namespace trainyard
