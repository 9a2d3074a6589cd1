#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::JobSpec ArchiveSpec(const std::string& train) {
  v1::JobSpec spec = ConvnetSpec();
  v1::WebDatasetData& archives = *spec.mutable_data()->mutable_webdataset();
  archives.add_train(train);
  archives.mutable_transform()->set_size(64);
  return spec;
}

TEST(ImageSpec, FillsTheDefaultsOfTheProto) {
  const auto spec = ResolveSpec(FolderSpec());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::ImageFolderData& folder = spec->data().image_folder();
  EXPECT_DOUBLE_EQ(folder.validation_fraction(), 0.1);
  EXPECT_EQ(folder.bad_records(), v1::SKIP_BAD_RECORDS);
  const v1::ImageTransform& t = folder.transform();
  EXPECT_EQ(t.resize(), 256);
  EXPECT_EQ(t.crop(), v1::ImageTransform::RANDOM_RESIZED);
  EXPECT_THAT(t.scale(), ElementsAre(0.08, 1));
  EXPECT_THAT(t.ratio(), ElementsAre(0.75, 4.0 / 3));
  EXPECT_TRUE(t.flip());
  EXPECT_THAT(t.mean(), ElementsAre(0.485, 0.456, 0.406));
  EXPECT_THAT(t.std(), ElementsAre(0.229, 0.224, 0.225));
  EXPECT_EQ(t.channels(), 3);
  EXPECT_EQ(ResolveSpec(*spec)->SerializeAsString(), spec->SerializeAsString());
}

TEST(ImageSpec, TakesOneMeanForAllChannels) {
  v1::JobSpec spec = FolderSpec();
  TransformOf(spec).add_mean(0.5);
  TransformOf(spec).set_channels(1);
  EXPECT_THAT(ResolveSpec(spec)->data().image_folder().transform().std(), ElementsAre(0.226));
  TransformOf(spec).set_channels(3);
  TransformOf(spec).add_std(2);
  const v1::ImageTransform t = ResolveSpec(spec)->data().image_folder().transform();
  EXPECT_THAT(t.mean(), ElementsAre(0.5, 0.5, 0.5));
  EXPECT_THAT(t.std(), ElementsAre(2, 2, 2));
}

TEST(ImageSpec, WritesOutWhatBracesStandFor) {
  const auto train = [](const std::string& uri) {
    return ResolveSpec(ArchiveSpec(uri))->data().webdataset().train();
  };
  EXPECT_THAT(train("/d/{a,b}-{08..11}.tar"),
              ElementsAre("/d/a-08.tar", "/d/a-09.tar", "/d/a-10.tar", "/d/a-11.tar", "/d/b-08.tar",
                          "/d/b-09.tar", "/d/b-10.tar", "/d/b-11.tar"));
  EXPECT_THAT(train("/d/x.tar"), ElementsAre("/d/x.tar"));
  EXPECT_EQ(train("/d/{00000..99999}.tar").size(), 100000);
  EXPECT_EQ(train("file:///d/{7..7}.tar")[0], "file:///d/7.tar");
}

struct BadImageSpec {
  const char* what;
  std::function<void(v1::JobSpec&)> spoil;
  const char* message;
};

TEST(ImageSpec, IsRefusedWithTheField) {
  const BadImageSpec folders[] = {
      {"no folder", [](auto& s) { s.mutable_data()->mutable_image_folder()->clear_train(); },
       "spec.data.image_folder.train: is missing; give an absolute path or file:// URI"},
      {"two splits",
       [](auto& s) {
         s.mutable_data()->mutable_image_folder()->set_validation("/v");
         s.mutable_data()->mutable_image_folder()->set_validation_fraction(0.1);
       },
       "spec.data.image_folder.validation_fraction: validation is the held-out split already"},
      {"fraction",
       [](auto& s) { s.mutable_data()->mutable_image_folder()->set_validation_fraction(0.6); },
       "spec.data.image_folder.validation_fraction: 0.6 is not in (0, 0.5]"},
      {"classes", [](auto& s) { s.mutable_data()->mutable_image_folder()->set_classes(0); },
       "spec.data.image_folder.classes: 0 is not in [1, 1048576]"},
      {"bad records",
       [](auto& s) {
         s.mutable_data()->mutable_image_folder()->set_bad_records(static_cast<v1::BadRecords>(7));
       },
       "spec.data.image_folder.bad_records: 7 is no choice; use REFUSE_BAD_RECORDS or SKIP"},
      {"no size", [](auto& s) { TransformOf(s).clear_size(); },
       "spec.data.image_folder.transform.size: is missing; give the side of a sample in pixels"},
      {"size", [](auto& s) { TransformOf(s).set_size(5000); },
       "spec.data.image_folder.transform.size: 5000 is not in [1, 4096]"},
      {"resize", [](auto& s) { TransformOf(s).set_resize(100); },
       "spec.data.image_folder.transform.resize: 100 is not in [224, 16384]"},
      {"crop", [](auto& s) { TransformOf(s).set_crop(static_cast<v1::ImageTransform::Crop>(5)); },
       "spec.data.image_folder.transform.crop: 5 is no choice; use RANDOM_RESIZED or CENTER"},
      {"one scale", [](auto& s) { TransformOf(s).add_scale(0.5); },
       "spec.data.image_folder.transform.scale: [0.5] is no range within (0, 1]; give [least, "},
      {"scale 0",
       [](auto& s) {
         TransformOf(s).add_scale(0);
         TransformOf(s).add_scale(1);
       },
       "spec.data.image_folder.transform.scale: [0, 1] is no range within (0, 1]"},
      {"ratio",
       [](auto& s) {
         TransformOf(s).add_ratio(2);
         TransformOf(s).add_ratio(1);
       },
       "spec.data.image_folder.transform.ratio: [2, 1] is no range within [0.01, 100]"},
      {"channels", [](auto& s) { TransformOf(s).set_channels(4); },
       "spec.data.image_folder.transform.channels: 4 is neither 3 (RGB) nor 1 (luma)"},
      {"means",
       [](auto& s) {
         TransformOf(s).add_mean(0);
         TransformOf(s).add_mean(0);
       },
       "spec.data.image_folder.transform.mean: 2 numbers for 3 channels; give one or 3"},
      {"mean", [](auto& s) { TransformOf(s).add_mean(NAN); },
       "spec.data.image_folder.transform.mean[0]: nan is not a finite number"},
      {"std", [](auto& s) { TransformOf(s).add_std(0); },
       "spec.data.image_folder.transform.std[0]: 0 is not a finite number above 0"},
      {"threads", [](auto& s) { s.mutable_data()->set_threads(0); },
       "spec.data.threads: 0 is not in [1, 256]"},
  };
  for (const BadImageSpec& bad : folders) {
    v1::JobSpec spec = FolderSpec();
    bad.spoil(spec);
    const absl::Status status = ResolveSpec(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message)) << bad.what;
  }
}

TEST(ImageSpec, OfArchivesIsRefusedWithTheElement) {
  const auto refused = [](const std::string& uri) {
    return std::string(ResolveSpec(ArchiveSpec(uri)).status().message());
  };
  EXPECT_THAT(refused("d/x.tar"), HasSubstr("spec.data.webdataset.train[0]: 'd/x.tar' is not an"));
  for (const char* uri :
       {"/{", "/}", "/}{", "/{3..1}", "/{a..c}", "/{1..}", "/{..}", "/{0..100000}"}) {
    EXPECT_THAT(refused(uri), HasSubstr("has braces that are neither {000..146} nor {a,b}")) << uri;
  }
  EXPECT_THAT(refused("/{000..999}{000..999}"), HasSubstr("makes more than 100000 archives"));
  EXPECT_THAT(refused("/{0..99999}" + std::string(100, 'x')), HasSubstr("or names of more than"));
  // Names of 4 MB, then half as long ones: each element by itself is within bounds.
  v1::JobSpec many = ArchiveSpec("/" + std::string(4000, 'x') + "{000..999}");
  many.mutable_data()->mutable_webdataset()->add_train("/" + std::string(2000, 'x') + "{000..999}");
  const std::string message(ResolveSpec(many).status().message());
  EXPECT_THAT(message, HasSubstr("spec.data.webdataset.train[1]: "));
  EXPECT_THAT(message, HasSubstr("or names of more than"));
  v1::JobSpec none = ArchiveSpec("/x");
  none.mutable_data()->mutable_webdataset()->clear_train();
  EXPECT_THAT(std::string(ResolveSpec(none).status().message()),
              HasSubstr("spec.data.webdataset.train: is missing; name an archive"));
  v1::JobSpec s3 = ArchiveSpec("s3://bucket/{0..9}.tar");
  EXPECT_EQ(ResolveSpec(s3).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ImageSpec, OfIdxChecksTheCrop) {
  v1::JobSpec spec = ConvnetSpec();
  spec.mutable_data()->mutable_idx()->set_crop_padding(65);
  EXPECT_THAT(std::string(ResolveSpec(spec).status().message()),
              HasSubstr("spec.data.idx.crop_padding: 65 is not in [0, 64]"));
}

}  // namespace
}  // namespace trainyard::plan
