#include "tests/conformance/postgres_fixture.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::testing {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStartBound = absl::Seconds(30);

absl::StatusOr<std::string> FindBinaries() {
  std::vector<std::pair<int, std::string>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/usr/lib/postgresql", error)) {
    const std::string bin = entry.path() / "bin";
    if (fs::exists(bin + "/initdb"))
      found.emplace_back(std::atoi(entry.path().filename().c_str()), bin);
  }
  if (found.empty()) {
    return absl::NotFoundError(
        "no initdb below /usr/lib/postgresql: install the package postgresql");
  }
  return std::max_element(found.begin(), found.end())->second;
}

// Forks; the child runs `argv` with stdout and stderr into `output` and, if asked for, as user
// postgres (when we are root) and not longer than we do.
pid_t Spawn(const std::vector<std::string>& argv, int output, bool as_postgres) {
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  std::vector<char*> environment;
  for (char** word = environ; *word != nullptr; ++word) {
    if (std::strncmp(*word, "LC_", 3) != 0 && std::strncmp(*word, "PG", 2) != 0) {
      environment.push_back(*word);
    }
  }
  std::string locale = "LC_ALL=C";
  environment.push_back(locale.data());
  environment.push_back(nullptr);
  const passwd* user = as_postgres && geteuid() == 0 ? getpwnam("postgres") : nullptr;
  const pid_t child = fork();
  if (child != 0) return child;
  if (user != nullptr && (setgroups(0, nullptr) != 0 || setgid(user->pw_gid) != 0 ||
                          setuid(user->pw_uid) != 0 || chdir("/") != 0)) {
    _exit(126);
  }
  prctl(PR_SET_PDEATHSIG, SIGQUIT);  // immediate shutdown, in PostgreSQL's words
  dup2(output, 1);
  dup2(output, 2);
  execve(args[0], args.data(), environment.data());
  _exit(127);
}

absl::StatusOr<std::string> RunToEnd(const std::vector<std::string>& argv, bool as_postgres) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const FileDescriptor reader(pipe_fds[0]);
  FileDescriptor writer(pipe_fds[1]);
  const pid_t child = Spawn(argv, writer.get(), as_postgres);
  writer.Reset(-1);
  std::string output;
  char buffer[4096];
  for (ssize_t n; (n = read(reader.get(), buffer, sizeof buffer)) != 0;) {
    if (n > 0) output.append(buffer, n);
    if (n < 0 && errno != EINTR) break;
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status == 0) return output;
  return absl::InternalError(absl::StrCat(argv[0], " ended with status ", status, ": ", output));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PostgresFixture>> PostgresFixture::Start(const Options& options) {
  std::unique_ptr<PostgresFixture> fixture(new PostgresFixture);
  fixture->options_ = options;
  TY_ASSIGN_OR_RETURN(fixture->binaries_, FindBinaries());
  std::string folder = (fs::temp_directory_path() / "trainyard-pg-XXXXXX").string();
  if (folder.size() > 80)
    folder = "/tmp/trainyard-pg-XXXXXX";  // a socket's path has at most 107 bytes
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, folder);
  fixture->folder_ = folder;
  if (geteuid() == 0) {
    const passwd* user = getpwnam("postgres");
    if (user == nullptr)
      return absl::NotFoundError("no user postgres: install the package postgresql");
    if (chown(folder.c_str(), user->pw_uid, user->pw_gid) != 0) return ErrnoStatus(errno, folder);
    chmod(folder.c_str(), 0711);
  }
  TY_RETURN_IF_ERROR(
      RunToEnd({fixture->binaries_ + "/initdb", "-D", folder + "/data", "-U", "trainyard", "-A",
                "trust", "-E", "UTF8", "--no-locale", "--no-sync"},
               true)
          .status());
  TY_RETURN_IF_ERROR(fixture->StartAgain());
  return fixture;
}

PostgresFixture::~PostgresFixture() {
  StopImmediately().IgnoreError();
  std::error_code error;
  if (!folder_.empty()) fs::remove_all(folder_, error);
}

std::string PostgresFixture::Conninfo(const std::string& database) const {
  return absl::StrCat("host=", folder_, " user=trainyard dbname=", database);
}

absl::Status PostgresFixture::CreateDatabase(const std::string& name, const std::string& from) {
  return Query("postgres", absl::StrCat("CREATE DATABASE \"", name, "\" TEMPLATE \"", from, "\""))
      .status();
}

absl::Status PostgresFixture::DropDatabase(const std::string& name) {
  return Query("postgres", absl::StrCat("DROP DATABASE \"", name, "\" WITH (FORCE)")).status();
}

absl::StatusOr<std::string> PostgresFixture::Query(const std::string& database,
                                                   const std::string& sql) const {
  TY_ASSIGN_OR_RETURN(const std::string output,
                      RunToEnd({binaries_ + "/psql", "-X", "-q", "-A", "-t", "-v",
                                "ON_ERROR_STOP=1", "-d", Conninfo(database), "-c", sql},
                               false));
  return std::string(absl::StripTrailingAsciiWhitespace(output));
}

// The postmaster first: what is stopped starts no further process.
absl::Status PostgresFixture::SignalAll(int signal) const {
  if (kill(server_, signal) != 0) return ErrnoStatus(errno, "kill");
  TY_ASSIGN_OR_RETURN(const std::string children,
                      ReadFile(absl::StrCat("/proc/", server_, "/task/", server_, "/children")));
  for (absl::string_view child : absl::StrSplit(children, ' ', absl::SkipWhitespace())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(child, &pid)) kill(pid, signal);
  }
  return absl::OkStatus();
}

absl::Status PostgresFixture::StopImmediately() {
  if (server_ < 0) return absl::OkStatus();
  TY_RETURN_IF_ERROR(Thaw());
  kill(server_, SIGQUIT);
  waitpid(server_, nullptr, 0);
  server_ = -1;
  return absl::OkStatus();
}

absl::Status PostgresFixture::StartAgain() {
  const std::string log = folder_ + "/log";
  const FileDescriptor output(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!output.valid()) return ErrnoStatus(errno, log);
  std::vector<std::string> argv = {binaries_ + "/postgres",
                                   "-D",
                                   folder_ + "/data",
                                   "-c",
                                   "listen_addresses=",
                                   "-c",
                                   "unix_socket_directories=" + folder_,
                                   "-c",
                                   options_.fsync ? "fsync=on" : "fsync=off"};
  for (const std::string& setting : options_.settings) {
    argv.push_back("-c");
    argv.push_back(setting);
  }
  server_ = Spawn(argv, output.get(), true);
  const absl::Time bound = absl::Now() + kStartBound;
  while (absl::Now() < bound) {
    if (RunToEnd({binaries_ + "/pg_isready", "-q", "-h", folder_}, false).ok())
      return absl::OkStatus();
    if (waitpid(server_, nullptr, WNOHANG) == server_) break;
    absl::SleepFor(absl::Milliseconds(10));
  }
  const absl::StatusOr<std::string> text = ReadFile(log);
  return absl::UnavailableError(absl::StrCat("postgres did not start: ", text.ok() ? *text : ""));
}

}  // namespace trainyard::testing
