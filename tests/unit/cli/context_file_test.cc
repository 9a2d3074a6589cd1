#include "clients/cpp/context_file.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/file.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class ContextFileTest : public testing::Test {
 protected:
  ContextFileTest() {
    std::string pattern = testing::TempDir() + "/contextsXXXXXX";
    home_ = mkdtemp(pattern.data());
    setenv("XDG_CONFIG_HOME", home_.c_str(), 1);
    for (const char* name : {"TRAINYARD_SERVER", "TRAINYARD_TOKEN", "TRAINYARD_CONTEXT",
                             "TRAINYARD_PROJECT", "TRAINYARD_CA_FILE"}) {
      unsetenv(name);
    }
    path_ = *ContextFilePath();
  }
  ~ContextFileTest() override { std::filesystem::remove_all(home_); }

  void Save(const std::string& name, const std::string& server, const std::string& token) {
    ASSERT_TRUE(ChangeContexts([&](ContextFile& file) {
                  file.contexts[name].server = server;
                  file.contexts[name].token = token;
                  file.contexts[name].insecure = true;
                  file.current = name;
                  return absl::OkStatus();
                }).ok());
  }

  std::string home_;
  std::string path_;
};

TEST_F(ContextFileTest, LivesUnderXdgConfigHomeElseUnderHome) {
  EXPECT_EQ(path_, home_ + "/trainyard/contexts.yaml");
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", "/home/ada", 1);
  EXPECT_EQ(*ContextFilePath(), "/home/ada/.config/trainyard/contexts.yaml");
  unsetenv("HOME");
  EXPECT_EQ(ContextFilePath().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ContextFileTest, KeepsWhatWasSavedForItsOwnerAlone) {
  Save("local", "127.0.0.1:7070", "s3cret: \"#\"");
  Save("far away", "far:1", "");
  const ContextFile file = *LoadContexts(path_);
  EXPECT_EQ(file.current, "far away");
  EXPECT_EQ(file.contexts.at("local").server, "127.0.0.1:7070");
  EXPECT_EQ(file.contexts.at("local").token, "s3cret: \"#\"");
  EXPECT_EQ(file.contexts.at("local").project, "default");
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(ContextFileTest, AMissingFileIsEmpty) { EXPECT_TRUE(LoadContexts(path_)->contexts.empty()); }

TEST_F(ContextFileTest, RefusesAFileThatOthersMayRead) {
  Save("local", "127.0.0.1:7070", "t");
  chmod(path_.c_str(), 0644);
  const absl::Status status = LoadContexts(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 600"));
}

TEST_F(ContextFileTest, RefusesWhatIsNoContextFile) {
  Save("local", "127.0.0.1:7070", "t");
  ASSERT_TRUE(WriteFileAtomically(path_, "contexts: [a, {b\n", 0600).ok());
  EXPECT_THAT(std::string(LoadContexts(path_).status().message()), HasSubstr("not a context file"));
}

TEST_F(ContextFileTest, WritersAtTheSameTimeLoseNothing) {
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([i] {
      (void)ChangeContexts([&](ContextFile& file) {
        file.contexts[absl::StrCat("c", i)].server = "x:1";
        return absl::OkStatus();
      });
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(LoadContexts(path_)->contexts.size(), 8u);
}

TEST_F(ContextFileTest, FlagsGoBeforeEnvironmentAndEnvironmentBeforeTheFile) {
  Save("other", "other:1", "other-token");
  Save("local", "local:1", "local-token");
  EXPECT_EQ(ResolveContext({})->context.server, "local:1");
  setenv("TRAINYARD_CONTEXT", "other", 1);
  EXPECT_EQ(ResolveContext({})->context.token, "other-token");
  EXPECT_EQ(ResolveContext({.context = "local"})->context.token, "local-token");
  setenv("TRAINYARD_TOKEN", "environment-token", 1);
  setenv("TRAINYARD_PROJECT", "vision", 1);
  EXPECT_EQ(ResolveContext({})->context.token, "environment-token");
  EXPECT_EQ(ResolveContext({})->context.project, "vision");
  EXPECT_EQ(ResolveContext({.project = "text"})->context.project, "text");
}

TEST_F(ContextFileTest, ATokenTravelsInClearTextOnlyWhereThatIsSaid) {
  Context context{.server = "127.0.0.1:1,yard:1", .token = "t"};
  EXPECT_EQ(CheckTokenIsSafe(context).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(CheckTokenIsSafe(context).message()), HasSubstr("yard:1"));
  context.insecure = true;
  EXPECT_TRUE(CheckTokenIsSafe(context).ok());
  context = {.server = "yard:1", .token = "t", .authorities = "system"};
  EXPECT_TRUE(CheckTokenIsSafe(context).ok());
  context = {.server = "yard:1"};
  EXPECT_TRUE(CheckTokenIsSafe(context).ok());
  for (const char* own : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/yard"}) {
    EXPECT_TRUE(CheckTokenIsSafe({.server = own, .token = "t"}).ok()) << own;
  }
  setenv("TRAINYARD_TOKEN", "t", 1);
  EXPECT_EQ(CheckTokenIsSafe(ResolveContext({.server = "yard:1"})->context).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(
      CheckTokenIsSafe(ResolveContext({.server = "yard:1", .insecure = true})->context).ok());
}

TEST_F(ContextFileTest, AuthoritiesAreKeptAndVouchForTheirServersAlone) {
  const std::string pem = "-----BEGIN CERTIFICATE-----\nAA: \"#\"\n-----END CERTIFICATE-----\n";
  ASSERT_TRUE(ChangeContexts([&](ContextFile& file) {
                file.contexts["team"] = {
                    .server = "yard-a:1,yard-b:1", .token = "t", .authorities = pem};
                file.current = "team";
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(ResolveContext({})->context.authorities, pem);
  EXPECT_FALSE(ResolveContext({})->context.insecure);
  EXPECT_EQ(ResolveContext({.server = "yard-b:1"})->context.authorities, pem);
  EXPECT_EQ(ResolveContext({.server = "other:1"})->context.authorities, "");
  EXPECT_EQ(ResolveContext({.server = "other:1"})->context.token, "");
  setenv("TRAINYARD_CA_FILE", "system", 1);
  EXPECT_EQ(ResolveContext({})->context.authorities, "system");
  EXPECT_EQ(ResolveContext({.ca_file = home_ + "/none"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ResolveContext({.ca_file = ""}).status().code(), absl::StatusCode::kInvalidArgument)
      << "what is empty is no consent to clear text";
}

// gRPC ends the process on a header that HTTP/2 does not carry.
TEST_F(ContextFileTest, ATokenThatCannotBeSentIsRefusedAndNotShown) {
  Save("local", "local:1", "local-token");
  setenv("TRAINYARD_TOKEN", " secret\n", 1);
  EXPECT_EQ(ResolveContext({})->context.token, "secret");
  const std::string file = home_ + "/token";
  for (const char* token : {"sec\nret", "sec\rret", "sec ret", "sec\x01ret", "sec\xc3\xa9ret"}) {
    setenv("TRAINYARD_TOKEN", token, 1);
    const absl::Status from_environment = ResolveContext({}).status();
    EXPECT_EQ(from_environment.code(), absl::StatusCode::kInvalidArgument) << token;
    EXPECT_THAT(std::string(from_environment.message()),
                HasSubstr("TRAINYARD_TOKEN: character 4 of the token is "));
    EXPECT_THAT(std::string(from_environment.message()), testing::Not(HasSubstr("ret;")));
    std::ofstream(file) << token;
    EXPECT_EQ(ResolveContext({.token_file = file}).status().code(),
              absl::StatusCode::kInvalidArgument);
    unsetenv("TRAINYARD_TOKEN");
    Save("bad", "local:1", token);
    EXPECT_FALSE(ResolveContext({.context = "bad"}).ok());
  }
}

TEST_F(ContextFileTest, APortThatThereCannotBeIsRefused) {
  for (const char* server : {"localhost:99999", "localhost:0", "localhost:", "localhost:http",
                             "[::1]:70000", "localhost:7070x"}) {
    const absl::Status status = ResolveContext({.server = server}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << server;
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected a number from 1 to 65535"));
  }
  for (const char* server : {"localhost:7070", "[::1]:7070", "yard.example", "unix:/run/yard",
                             "dns:///yard.example:443", "::1"}) {
    EXPECT_EQ(ResolveContext({.server = server}).status(), absl::OkStatus()) << server;
  }
}

TEST_F(ContextFileTest, AContextListsSeveralServersAsTextOrAsAList) {
  Save("team", "a:1, b:2", "team-token");
  EXPECT_EQ(ResolveContext({})->context.server, "a:1, b:2");
  std::ofstream(path_) << "current: team\ncontexts:\n  team: {server: [\"a:1\", \"b:2\"], token: "
                          "t, insecure: true}\n";
  EXPECT_EQ(ResolveContext({})->context.server, "a:1,b:2");
  EXPECT_EQ(ResolveContext({.server = "b:2"})->context.token, "t") << "one of the context's";
  EXPECT_EQ(ResolveContext({.server = "b:2,a:1"})->context.token, "t");
  EXPECT_EQ(ResolveContext({.server = "b:2,evil:1"})->context.token, "");
}

TEST_F(ContextFileTest, TheAddressThatCannotBeOneIsNamed) {
  for (const char* server :
       {"", "a b:1", "a:1/x", ":7070", "[::1:7070", "[::1]7070", "a\x1b:1", "b:99999"}) {
    const std::string list = absl::StrCat("good:1,", server);
    const absl::Status status = ResolveContext({.server = list}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << server;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("server '")) << server;
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("good"))) << server;
  }
}

TEST_F(ContextFileTest, ATokenIsNeverSentToAnotherServer) {
  Save("local", "local:1", "local-token");
  EXPECT_EQ(ResolveContext({.server = "evil:1"})->context.token, "");
  EXPECT_EQ(ResolveContext({.server = "local:1"})->context.token, "local-token");
  setenv("TRAINYARD_SERVER", "evil:1", 1);
  EXPECT_EQ(ResolveContext({})->context.token, "");
}

TEST_F(ContextFileTest, AnUnknownContextIsNotFoundWithASuggestion) {
  Save("local", "local:1", "t");
  const absl::Status status = ResolveContext({.context = "locl"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(did you mean 'local'?)"));
}

TEST_F(ContextFileTest, WithoutAnyServerTheWayToOneIsTold) {
  const absl::Status status = ResolveContext({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("`trainyard local start`"));
}

}  // namespace
}  // namespace trainyard
