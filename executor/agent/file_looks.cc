#include "executor/agent/file_looks.h"

#include <errno.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/agent/log_file.h"
#include "executor/run/orders.h"
#include "executor/run/run_directory.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr size_t kLargestAnswer = 1 << 20;
constexpr absl::Duration kToldWithin = absl::Seconds(5);
constexpr absl::Duration kGonePatience = absl::Seconds(1);
constexpr absl::Duration kBetweenLooksAtStop = absl::Milliseconds(200);

v1::LookAnswer ErrorAnswer(const std::string& request_id, const absl::Status& status, bool unseen) {
  v1::LookAnswer answer;
  answer.set_request_id(request_id);
  answer.mutable_error()->set_code(static_cast<int>(status.code()));
  answer.mutable_error()->set_message(std::string(status.message()));
  answer.mutable_error()->set_unseen(unseen);
  return answer;
}

}  // namespace

FileLooks::FileLooks(Options options, std::function<void(v1::LookAnswer)> answer)
    : options_(std::move(options)), answer_(std::move(answer)) {
  for (int i = 0; i < kAtOnce; ++i) threads_.emplace_back([this] { Run(); });
}

FileLooks::~FileLooks() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void FileLooks::Ask(v1::LookRequest request) {
  {
    absl::MutexLock lock(&mu_);
    const auto same = [&](const Waiting& one) {
      return one.request.unix_user() == request.unix_user();
    };
    if (waiting_.size() < kMostWaiting &&
        absl::c_count_if(waiting_, same) < static_cast<ptrdiff_t>(kMostWaitingOfUser)) {
      waiting_.push_back({std::move(request), absl::Now()});
      return;
    }
  }
  answer_(ErrorAnswer(
      request.request_id(),
      absl::UnavailableError("the node is busy with the files of other submissions; try again"),
      false));
}

void FileLooks::ForgetWaiting() {
  absl::MutexLock lock(&mu_);
  waiting_.clear();
}

void FileLooks::WithPids(const std::function<void(const std::set<pid_t>& pids)>& act) {
  absl::MutexLock lock(&processes_mu_);
  act(pids_);
}

void FileLooks::Run() {
  for (;;) {
    v1::LookRequest request;
    {
      absl::MutexLock lock(&mu_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stop_ || !waiting_.empty();
      };
      mu_.Await(absl::Condition(&due));
      if (stop_) return;
      Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      if (absl::Now() - next.asked > kLongest) continue;  // the server has given it up
      request = std::move(next.request);
    }
    v1::LookAnswer answer = Look(request);
    if (Stops()) return;
    answer_(std::move(answer));
  }
}

v1::LookAnswer FileLooks::Look(const v1::LookRequest& request) {
  const std::string log = absl::StrCat(options_.folder, "/", RandomHex(8));
  absl::StatusOr<v1::LookAnswer> answer = AskWorker(request, log);
  unlink(log.c_str());
  if (!answer.ok()) {
    // Another node may know the user.
    const bool unseen = absl::IsNotFound(answer.status());
    return ErrorAnswer(request.request_id(), answer.status(), unseen);
  }
  answer->set_request_id(request.request_id());
  return *std::move(answer);
}

absl::StatusOr<Process> FileLooks::StartWorker(const FileDescriptor& its_end,
                                               const std::string& log) {
  absl::MutexLock lock(&processes_mu_);
  absl::StatusOr<Process> process =
      Process::Spawn({.program = options_.worker.path,
                      .arguments = {"look"},
                      .environment = WorkerEnvironment(options_.worker),
                      .folder = options_.folder,
                      .stdin_fd = its_end.get(),
                      .output_path = log});
  if (process.ok()) pids_.insert(process->id().pid);
  return process;
}

std::optional<ExitStatus> FileLooks::EndWorker(Process& process) {
  process.KillGroup();
  std::optional<ExitStatus> end;
  for (const absl::Time last = absl::Now() + kGonePatience; !end && absl::Now() < last;) {
    end = process.TryReap();
    if (!end) absl::SleepFor(absl::Milliseconds(1));
  }
  absl::MutexLock lock(&processes_mu_);
  pids_.erase(process.id().pid);
  return end;
}

bool FileLooks::Stops() {
  absl::MutexLock lock(&mu_);
  return stop_;
}

absl::StatusOr<std::string> FileLooks::Converse(int socket, const run::Orders& orders,
                                                const std::string& request) {
  // One that does not read what it is told is not waited for.
  const timeval patience = absl::ToTimeval(kToldWithin);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  TY_RETURN_IF_ERROR(run::GiveOrders(socket, orders, -1));
  TY_RETURN_IF_ERROR(WriteAll(socket, request, "the request"));
  shutdown(socket, SHUT_WR);
  std::string answer;
  for (const absl::Time deadline = absl::Now() + kLongest; answer.size() <= kLargestAnswer;) {
    if (Stops()) return absl::CancelledError("the agent ends");
    if (absl::Now() > deadline) {
      return absl::FailedPreconditionError(absl::StrCat(
          "to look at the files takes more than ", absl::FormatDuration(kLongest),
          ": check that their file system answers, or give the data in smaller or simpler files"));
    }
    pollfd readable{.fd = socket, .events = POLLIN};
    if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kBetweenLooksAtStop))) <= 0) {
      continue;
    }
    char piece[16384];
    const ssize_t n = read(socket, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return answer;
    answer.append(piece, n);
  }
  return absl::InternalError("the answer is too large");
}

absl::StatusOr<v1::LookAnswer> FileLooks::AskWorker(const v1::LookRequest& request,
                                                    const std::string& log) {
  if (request.unix_user().empty()) {
    return absl::InvalidArgumentError("nobody was named as whom to look");
  }
  const absl::StatusOr<std::optional<run::UnixUser>> user =
      FindUnixUser(request.unix_user(), options_.users);
  if (!user.ok()) return absl::NotFoundError(user.status().message());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "socketpair").message());
  }
  FileDescriptor its_end(ends[0]);
  const FileDescriptor our_end(ends[1]);
  absl::StatusOr<Process> process = StartWorker(its_end, log);
  if (!process.ok()) return absl::UnavailableError(process.status().message());
  its_end.Reset(-1);
  const absl::StatusOr<std::string> said =
      Converse(our_end.get(), {.user = *user}, request.SerializeAsString());
  const std::optional<ExitStatus> end = EndWorker(*process);
  // kExitUsage: a worker of before.
  if (end && (end->code == run::kExitInternal || end->code == run::kExitUsage)) {
    const std::string why = LogFile(log).LastLines(1000);
    spdlog::error("cannot look at files as {}: {}", request.unix_user(), why);
    return absl::UnavailableError(
        absl::StrCat("the node cannot look at files as '", request.unix_user(), "': ", why));
  }
  if (absl::IsFailedPrecondition(said.status())) return said.status();
  if (!said.ok()) return absl::UnavailableError(said.status().message());
  v1::LookAnswer answer;
  if (!said->empty() && answer.ParseFromString(*said) &&
      answer.says_case() != v1::LookAnswer::SAYS_NOT_SET) {
    return answer;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "spec.data: the process that looked at the files ended by ",
      !end               ? "silence"
      : end->signal != 0 ? absl::StrCat("signal ", end->signal)
                         : absl::StrCat("code ", end->code),
      "; check that they are whole and what the fields expect; if they are, this is a defect of "
      "Trainyard"));
}

}  // namespace trainyard
