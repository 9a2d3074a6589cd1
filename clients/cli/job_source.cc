#include "clients/cli/job_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/text/job_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

constexpr int64_t kLimit = 1 << 20;  // the parser's own limit is lower, with a better message

absl::StatusOr<std::string> ReadStandardInput() {
  std::string text;
  char buffer[16384];
  ssize_t n;
  while ((n = read(STDIN_FILENO, buffer, sizeof(buffer))) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "standard input");
    text.append(buffer, n);
    if (text.size() > kLimit)
      return absl::InvalidArgumentError("standard input: no job file, too long");
  }
  return text;
}

absl::StatusOr<std::string> ReadText(const std::string& file) {
  if (file == "-") return ReadStandardInput();
  struct stat info;
  if (stat(file.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is a folder; expected a job file"));
  }
  return ReadFile(file, kLimit);
}

std::string NameOf(const std::string& file) { return file == "-" ? "standard input" : file; }

absl::Status SetAll(const std::vector<std::string>& sets, v1::Job& job) {
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", set, ": expected FIELD=VALUE, such as training.steps=100"));
    }
    TY_RETURN_IF_ERROR(SetField(job, set.substr(0, equals), set.substr(equals + 1)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Job> ReadJob(const std::string& file, const std::vector<std::string>& sets) {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadText(file));
  TY_ASSIGN_OR_RETURN(v1::Job job, ParseJobFile(text, NameOf(file)));
  TY_RETURN_IF_ERROR(SetAll(sets, job));
  return job;
}

absl::StatusOr<std::vector<SourcedJob>> ReadJobs(const std::vector<std::string>& files,
                                                 const std::vector<std::string>& sets) {
  std::vector<SourcedJob> jobs;
  for (const std::string& file : files) {
    const std::string name = NameOf(file);
    TY_ASSIGN_OR_RETURN(const std::string text, ReadText(file));
    TY_ASSIGN_OR_RETURN(std::vector<JobDocument> documents, ParseJobDocuments(text, name));
    for (JobDocument& document : documents) {
      TY_RETURN_IF_ERROR(SetAll(sets, document.job));
      jobs.push_back({std::move(document.job),
                      documents.size() == 1 ? name : absl::StrCat(name, ":", document.line)});
    }
  }
  return jobs;
}

}  // namespace trainyard::cli
