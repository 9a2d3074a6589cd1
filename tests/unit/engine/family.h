#pragma once

// Small jobs for tests that go over the families of models.

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "google/protobuf/text_format.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {

struct Family {
  const char* name;
  const char* spec;  // merged into that of a small GPT
  enum { kText, kDocuments, kImages, kClicks } data = kText;
};

inline void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

// Of `steps` steps; its data is written to `folder`.
inline v1::JobSpec SmallJob(const Family& family, const std::string& folder, int64_t steps) {
  v1::JobSpec spec = SmallGpt("", steps), more;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(family.spec, &more));
  spec.MergeFrom(more);
  v1::Data& data = *spec.mutable_data();
  switch (family.data) {
    case Family::kText:
      data.mutable_text()->set_path(WriteText(folder));
      break;
    case Family::kDocuments:
      data.mutable_text()->set_path(WriteDocuments(folder));
      break;
    case Family::kImages:
      data = SmallImages(folder);
      break;
    case Family::kClicks:
      data.mutable_clicks()->set_train_samples(100);
      data.mutable_clicks()->set_validation_samples(20);
      break;
  }
  return spec;
}

}  // namespace trainyard::engine
