#include "server/api/project_facts.h"

#include <gtest/gtest.h>

#include "executor/facts/facts_message.h"
#include "storage/base/clock.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {
namespace {

class ProjectFactsTest : public ::testing::Test {
 protected:
  ProjectFactsTest() {
    EXPECT_TRUE(stores_.projects().SetProject({.name = "vision", .unix_user = "ann"}).ok());
    answer_ = v1::DataFacts();
    answer_->set_kind(v1::DataFacts::TOKENS);
    answer_->set_vocab(65);
  }

  absl::StatusOr<FactsFrom> Of(const std::string& project, const std::string& text,
                               double rate = 0.1) {
    v1::JobSpec spec;
    spec.mutable_data()->mutable_text()->set_path(text);
    spec.mutable_schedule()->set_learning_rate(rate);
    JobRecord job;
    job.project = project;
    job.spec = spec.SerializeAsString();
    looked_ = absl::OkStatus();
    return facts_.Of(job, absl::Now() + absl::Seconds(10), looked_);
  }

  MemoryStores stores_{SystemClock()};
  absl::StatusOr<v1::DataFacts> answer_ = v1::DataFacts();
  bool unseen_ = false;
  int looks_ = 0;
  std::string user_;
  absl::Status looked_;
  ProjectFacts facts_{stores_.projects(),
                      [this](const v1::LookRequest& request, absl::Time, bool& unseen) {
                        ++looks_;
                        user_ = request.unix_user();
                        unseen = unseen_;
                        return answer_;
                      }};
};

TEST_F(ProjectFactsTest, AreTheServersToFindWhereAProjectHasNoUser) {
  const auto from = Of("default", "/a");
  ASSERT_TRUE(from.ok());
  EXPECT_FALSE(from->spec_alone);
  EXPECT_FALSE(from->found.has_value());
  EXPECT_EQ(looks_, 0);
}

TEST_F(ProjectFactsTest, AreFoundByANodeAsTheUserOnceForASweep) {
  for (const double rate : {0.1, 0.2, 0.3}) {
    const auto from = Of("vision", "/a", rate);
    ASSERT_TRUE(from.ok()) << from.status();
    EXPECT_TRUE(from->spec_alone);
    EXPECT_EQ(from->found->vocab, 65);
  }
  EXPECT_EQ(user_, "ann");
  EXPECT_EQ(looks_, 1);
  ASSERT_TRUE(Of("vision", "/b").ok());
  EXPECT_EQ(looks_, 2) << "other files";
}

TEST_F(ProjectFactsTest, AreTheSpecsToDeclareWhereNobodySeesTheFiles) {
  answer_ = absl::UnavailableError("nobody looks");
  auto from = Of("vision", "/a");
  ASSERT_TRUE(from.ok());
  EXPECT_TRUE(from->spec_alone && !from->found.has_value());
  EXPECT_EQ(looked_, answer_.status());
  answer_ = absl::FailedPreconditionError("it takes too long");
  EXPECT_TRUE(Of("vision", "/a").ok());
  EXPECT_EQ(looked_.message(), "it takes too long");
  answer_ = absl::InvalidArgumentError("/a: No such file");
  unseen_ = true;
  from = Of("vision", "/a");
  ASSERT_TRUE(from.ok());
  EXPECT_EQ(looked_.message(), "/a: No such file");
  unseen_ = false;  // it was seen, and is bad
  EXPECT_EQ(Of("vision", "/a").status().message(), "/a: No such file");
}

TEST_F(ProjectFactsTest, ThatNoDataCanHaveAreRefused) {
  answer_->set_train_size(-1);
  EXPECT_EQ(Of("vision", "/a").status().code(), absl::StatusCode::kInvalidArgument);
  answer_->set_train_size(1);
  answer_->set_kind(static_cast<v1::DataFacts::Kind>(77));
  EXPECT_EQ(Of("vision", "/c").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace trainyard
