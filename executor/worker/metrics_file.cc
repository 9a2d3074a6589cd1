#include "executor/worker/metrics_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trainyard::worker {

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path) {
  std::error_code ignored;  // opening it says what is wrong
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("--metrics ", path));
  return MetricsFile(path, std::move(file));
}

absl::Status MetricsFile::Add(int64_t step, engine::RunObserver::Split split,
                              const std::map<std::string, double>& values) {
  const bool train = split == engine::RunObserver::Split::kTrain;
  std::string line =
      absl::StrFormat(R"({"step":%d,"split":"%s")", step, train ? "train" : "validation");
  for (const auto& [name, value] : values) {
    absl::StrAppend(&line, ",\"", name, "\":");
    absl::StrAppend(&line, std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null");
  }
  absl::StrAppend(&line, "}\n");
  return WriteAll(file_.get(), line, path_);
}

}  // namespace trainyard::worker
