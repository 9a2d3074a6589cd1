#include "clients/cli/local/postgres.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "clients/cli/local/yard.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kInitLimit = absl::Minutes(2);

bool HasPrograms(const std::string& bin_dir) {
  return access((bin_dir + "/postgres").c_str(), X_OK) == 0 &&
         access((bin_dir + "/initdb").c_str(), X_OK) == 0;
}

// Version folders of Debian, newest first.
std::vector<int> InstalledVersions() {
  std::vector<int> versions;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/usr/lib/postgresql", error)) {
    int version = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &version) &&
        HasPrograms((entry.path() / "bin").string())) {
      versions.push_back(version);
    }
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

// For systems that keep PostgreSQL on PATH.
std::string BinDirOnPath() {
  const char* const path = std::getenv("PATH");
  if (path == nullptr) return "";
  for (const absl::string_view folder : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    if (HasPrograms(std::string(folder))) return std::string(folder);
  }
  return "";
}

absl::StatusOr<std::string> FindBinDir(const Yard& yard) {
  const std::vector<int> versions = InstalledVersions();
  const absl::StatusOr<std::string> made_with = ReadFile(yard.data_dir() + "/PG_VERSION", 64);
  if (made_with.ok()) {
    const std::string version(absl::StripAsciiWhitespace(*made_with));
    const std::string bin_dir = absl::StrCat("/usr/lib/postgresql/", version, "/bin");
    if (HasPrograms(bin_dir)) return bin_dir;
    if (!versions.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(yard.data_dir(), " was made by PostgreSQL ", version,
                       ", which is not installed; run `apt-get install postgresql-", version, "`"));
    }
  }
  if (!versions.empty()) return absl::StrCat("/usr/lib/postgresql/", versions[0], "/bin");
  const std::string on_path = BinDirOnPath();
  if (!on_path.empty()) return on_path;
  return absl::FailedPreconditionError(
      "PostgreSQL is not installed (no initdb in /usr/lib/postgresql/*/bin or on PATH); run "
      "`apt-get install postgresql`");
}

absl::StatusOr<std::optional<User>> UserToBecome() {
  if (geteuid() != 0) return std::optional<User>();
  const passwd* entry = getpwnam("postgres");
  if (entry == nullptr) {
    return absl::FailedPreconditionError(
        "PostgreSQL does not run as root and there is no user postgres; run "
        "`adduser --system --group postgres`");
  }
  return std::optional<User>(User{entry->pw_uid, entry->pw_gid, "postgres"});
}

// A folder of mode 0700 that belongs to whoever runs PostgreSQL.
absl::Status MakeOwnFolder(const std::string& path, const std::optional<User>& user) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, path);
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  const uid_t owner = user.has_value() ? user->uid : geteuid();
  if (!S_ISDIR(info.st_mode) || (info.st_uid != owner && info.st_uid != geteuid())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " belongs to somebody else; remove it, or choose another --dir"));
  }
  if (user.has_value() && lchown(path.c_str(), user->uid, user->gid) != 0) {
    return ErrnoStatus(errno, path);
  }
  return chmod(path.c_str(), 0700) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path);
}

// Whether user postgres may enter the yard's folder; it may not enter /root, for instance.
absl::Status CheckReachable(const Yard& yard, const std::optional<User>& user) {
  if (!user.has_value()) return absl::OkStatus();
  SpawnOptions test;
  test.argv = {"/usr/bin/test", "-x", yard.postgres_dir()};
  test.log_path = yard.log_path("postgres");
  test.user = user;
  if (RunToEnd(test, absl::Seconds(10)).ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("PostgreSQL runs as user ", user->name, ", which may not enter ", yard.dir(),
                   "; choose another --dir, such as /var/lib/trainyard"));
}

// Whether any process of a PostgreSQL server, a back end that outlived its postmaster for one,
// still works in the data folder.
bool HasServerProcess(const std::string& data_dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || !FindProcess(pid).ok())
      continue;
    std::error_code unreadable;
    if (fs::read_symlink(entry.path() / "cwd", unreadable) == data_dir) return true;
  }
  return false;
}

absl::Status Run(const Yard& yard, const Postgres& postgres, std::vector<std::string> argv) {
  SpawnOptions options;
  options.argv = std::move(argv);
  options.log_path = yard.log_path("postgres");
  options.user = postgres.user;
  options.environment = {{kYardVariable, yard.dir()}, {"LC_ALL", "C"}};
  const absl::Status status = RunToEnd(options, kInitLimit);
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat("the database cannot be made; ", options.log_path,
                                       " ends with\n", TailOfFile(options.log_path, 5)));
}

}  // namespace

absl::StatusOr<Postgres> FindPostgres(const Yard& yard) {
  Postgres postgres;
  TY_ASSIGN_OR_RETURN(postgres.bin_dir, FindBinDir(yard));
  TY_ASSIGN_OR_RETURN(postgres.user, UserToBecome());
  return postgres;
}

absl::Status PrepareDatabase(const Yard& yard) {
  TY_ASSIGN_OR_RETURN(const Postgres postgres, FindPostgres(yard));
  TY_RETURN_IF_ERROR(MakeOwnFolder(yard.postgres_dir(), postgres.user));
  TY_RETURN_IF_ERROR(MakeOwnFolder(yard.socket_dir(), postgres.user));
  TY_RETURN_IF_ERROR(CheckReachable(yard, postgres.user));
  if (access((yard.data_dir() + "/PG_VERSION").c_str(), F_OK) == 0) return absl::OkStatus();
  // Made under another name first: data/ is there whole or not at all.
  const std::string unfinished = yard.data_dir() + ".new";
  std::error_code error;
  fs::remove_all(unfinished, error);
  TY_RETURN_IF_ERROR(Run(yard, postgres,
                         {postgres.bin_dir + "/initdb", "-D", unfinished, "-U", "trainyard", "-A",
                          "trust", "-E", "UTF8", "--no-locale", "--no-instructions"}));
  // CREATE DATABASE through a single-user back end: nothing listens yet.
  TY_RETURN_IF_ERROR(Run(
      yard, postgres,
      {"/bin/sh", "-c", "echo 'CREATE DATABASE trainyard' | \"$0\" --single -j -D \"$1\" postgres",
       postgres.bin_dir + "/postgres", unfinished}));
  if (rename(unfinished.c_str(), yard.data_dir().c_str()) != 0) {
    return ErrnoStatus(errno, yard.data_dir());
  }
  return absl::OkStatus();
}

void RemoveStaleLockFiles(const Yard& yard) {
  if (HasServerProcess(yard.data_dir())) return;
  unlink((yard.data_dir() + "/postmaster.pid").c_str());
  unlink((yard.socket_dir() + "/.s.PGSQL.5432.lock").c_str());
}

}  // namespace trainyard::cli
