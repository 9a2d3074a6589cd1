#include "storage/project_store.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/printable.h"

namespace trainyard {
namespace {

constexpr size_t kLongestUser = 64;

bool MayBeInUser(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("._@-").find(c) != absl::string_view::npos;
}

}  // namespace

absl::Status CheckUnixUser(const std::string& name) {
  const bool well_formed = !name.empty() && name.size() <= kLongestUser && name[0] != '-' &&
                           std::all_of(name.begin(), name.end(), MayBeInUser) &&
                           !std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  if (!well_formed) {
    return absl::InvalidArgumentError(absl::StrCat("found '", EscapedLine(name.substr(0, 200)),
                                                   "', expected the name of a user on the nodes, ",
                                                   "of at most ", kLongestUser,
                                                   " letters, digits and ._@-, not all digits"));
  }
  if (name == "root") {
    return absl::InvalidArgumentError("found 'root', expected a user of the project alone");
  }
  return absl::OkStatus();
}

absl::Status TooManyJobs(const std::string& project, int max_jobs) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "projects/", project, " may have ", max_jobs, max_jobs == 1 ? " job" : " jobs",
      " that have not ended, and has no fewer; once one ends there is room for another"));
}

}  // namespace trainyard
