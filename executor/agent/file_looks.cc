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
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
    }
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
  // One that does not read what it is told is not waited for.
  const timeval patience = absl::ToTimeval(kToldWithin);
  setsockopt(our_end.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  absl::StatusOr<Process> process = absl::UnknownError("not started");
  {
    absl::MutexLock lock(&processes_mu_);
    std::vector<std::string> arguments = RootArguments(options_.worker);
    arguments.insert(arguments.begin(), "look");
    process = Process::Spawn({.program = options_.worker.path,
                              .arguments = arguments,
                              .environment = WorkerEnvironment(environ),
                              .folder = options_.folder,
                              .stdin_fd = its_end.get(),
                              .output_path = log});
    if (!process.ok()) return absl::UnavailableError(process.status().message());
    pids_.insert(process->id().pid);
  }
  its_end.Reset(-1);
  std::string bytes;
  absl::Status talked = run::GiveOrders(our_end.get(), {.user = *user}, -1);
  if (talked.ok()) talked = WriteAll(our_end.get(), request.SerializeAsString(), "the request");
  if (talked.ok() && shutdown(our_end.get(), SHUT_WR) != 0) talked = ErrnoStatus(errno, "shutdown");
  const absl::Time deadline = absl::Now() + kLongest;
  while (talked.ok()) {
    {
      absl::MutexLock lock(&mu_);
      if (stop_) talked = absl::CancelledError("the agent ends");
    }
    pollfd readable{.fd = our_end.get(), .events = POLLIN};
    if (absl::Now() > deadline) {
      talked = absl::FailedPreconditionError(absl::StrCat(
          "to look at the files takes more than ", absl::FormatDuration(kLongest),
          ": check that their file system answers, or give the data in smaller or simpler files"));
    }
    if (!talked.ok() ||
        poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kBetweenLooksAtStop))) <= 0) {
      continue;
    }
    char piece[16384];
    const ssize_t n = read(our_end.get(), piece, sizeof piece);
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0) bytes.append(piece, n);
    if (bytes.size() > kLargestAnswer) talked = absl::InternalError("the answer is too large");
  }
  process->KillGroup();
  // One whose file system hangs is left to whoever reaps strays.
  std::optional<ExitStatus> end;
  for (const absl::Time last = absl::Now() + kGonePatience; !end && absl::Now() < last;) {
    end = process->TryReap();
    if (!end) absl::SleepFor(absl::Milliseconds(1));
  }
  {
    absl::MutexLock lock(&processes_mu_);
    pids_.erase(process->id().pid);
  }
  TY_RETURN_IF_ERROR(talked);
  v1::LookAnswer answer;
  if (!bytes.empty() && answer.ParseFromString(bytes) &&
      answer.says_case() != v1::LookAnswer::SAYS_NOT_SET) {
    return answer;
  }
  if (end && end->code == run::kExitInternal) {
    const std::string why = LogFile(log).LastLines(1000);
    spdlog::error("cannot look at files as {}: {}", request.unix_user(), why);
    return absl::UnavailableError(
        absl::StrCat("the node cannot look at files as '", request.unix_user(), "': ", why));
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
