#include "executor/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace trainyard::weights {
namespace {

using ::testing::HasSubstr;

class BytesReader : public ObjectReader {
 public:
  explicit BytesReader(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status Read(int64_t offset, size_t bytes, void* to) override {
    if (offset + bytes > bytes_.size()) return absl::OutOfRangeError("end");
    memcpy(to, bytes_.data() + offset, bytes);
    return absl::OkStatus();
  }

 private:
  std::string bytes_;
};

absl::StatusOr<SafetensorsFile> OpenBytes(std::string bytes) {
  return SafetensorsFile::Open(std::make_unique<BytesReader>(std::move(bytes)), "f.safetensors");
}

std::string WithLength(uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const SafetensorsHeader header =
      PackedHeader({{"b", {"F32", {2, 1}}}, {"a", {"F32", {3}}}, {"empty", {"F32", {0, 4}}}});
  const float data[] = {1, 2, 3, 4, 5};
  std::string bytes = SafetensorsPrefix(header);
  EXPECT_EQ(bytes.size() % 8, 0u);
  bytes.append(reinterpret_cast<const char*>(data), sizeof(data));
  const auto file = OpenBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().metadata.at("format"), "pt");
  const auto b = file->Find("b", {2, 1});
  ASSERT_TRUE(b.ok()) << b.status();
  float second = 0;
  ASSERT_TRUE(file->Read(*b, 4, 4, &second).ok());
  EXPECT_EQ(second, 5);
}

TEST(Safetensors, WiderElementsComeFirstSoThatEachIsAligned) {
  const SafetensorsHeader header =
      PackedHeader({{"a", {"F32", {3}}}, {"b", {"I64", {}}}, {"c", {"F32", {1}}}});
  EXPECT_THAT(NamesByPlace(header), ::testing::ElementsAre("b", "a", "c"));
  EXPECT_EQ(header.tensors.at("b").end, 8);
  EXPECT_EQ(header.tensors.at("a").begin, 8);
  EXPECT_EQ(header.tensors.at("c").end, 24);
}

TEST(Safetensors, AnotherShapeOrAMissingNameIsNamed) {
  const auto file =
      OpenBytes(SafetensorsPrefix(PackedHeader({{"a", {"F32", {3}}}})) + std::string(12, '\0'));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string(file->Find("a", {4}).status().message()),
              HasSubstr("tensor 'a' is F32 [3]; expected F32 [4]"));
  EXPECT_THAT(std::string(file->Find("x", {3}).status().message()),
              HasSubstr("tensor 'x' is missing"));
}

TEST(Safetensors, AFileThatCannotHoldItsHeaderIsRefused) {
  EXPECT_TRUE(absl::IsDataLoss(OpenBytes("").status()));
  EXPECT_TRUE(absl::IsDataLoss(OpenBytes("1234567").status()));
  EXPECT_TRUE(absl::IsDataLoss(OpenBytes(WithLength(3, "{}")).status()));
  EXPECT_THAT(std::string(OpenBytes(WithLength(100'000'001, "{}")).status().message()),
              HasSubstr("at most 100000000"));
  EXPECT_TRUE(absl::IsDataLoss(OpenBytes(WithLength(~uint64_t{0}, "{}")).status()));
  EXPECT_TRUE(OpenBytes(WithLength(2, "{}")).ok());
}

struct Hostile {
  const char* name;
  const char* json;
  int64_t data_bytes;
  const char* message;
};

class HostileHeader : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileHeader, IsRefusedWithItsReason) {
  const auto header = ParseSafetensorsHeader(GetParam().json, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_TRUE(absl::IsDataLoss(header.status())) << header.status();
  EXPECT_THAT(std::string(header.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, HostileHeader,
    ::testing::Values(
        Hostile{"Empty", "", 0, "does not begin with '{'"}, Hostile{"NotJson", "{]", 0, "not JSON"},
        Hostile{"Truncated", R"({"a":{"dtype":"F32")", 4, "not JSON"},
        Hostile{"TextAfterIt", R"({}x)", 0, "not JSON"},
        Hostile{"Array", "[]", 0, "does not begin"},
        Hostile{"Deep", R"({"a":{"dtype":{"x":1}}})", 0, "unexpected an object"},
        Hostile{"DeepArray", R"({"a":{"shape":[[1]]}})", 0, "unexpected an array"},
        Hostile{"TensorTwice",
                R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                    "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                8, "tensor 'a' twice"},
        Hostile{"FieldTwice", R"({"a":{"dtype":"F32","dtype":"F32"}})", 4, "field 'dtype' twice"},
        Hostile{"FieldUnknown", R"({"a":{"strides":[1]}})", 4, "unknown field 'strides'"},
        Hostile{"FieldMissing", R"({"a":{"dtype":"F32","shape":[1]}})", 4, "needs dtype, shape"},
        Hostile{"DtypeUnknown", R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4,
                "unknown dtype 'F31'"},
        Hostile{"DtypeNumber", R"({"a":{"dtype":3}})", 4, "unexpected a number"},
        Hostile{"NegativeDim", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                "negative number -1"},
        Hostile{"FractionalDim", R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4,
                "the number 1.5"},
        Hostile{"HugeNumber", R"({"a":{"dtype":"F32","shape":[18446744073709551615]}})", 4,
                "too large"},
        Hostile{"ShapeOverflows",
                R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
                "overflows"},
        Hostile{"ShapeAndBytesDiffer", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
                4, "do not hold the 8 bytes"},
        Hostile{"EndBeforeBegin", R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[4,0]}})", 4,
                "do not hold"},
        Hostile{"ThreeOffsets", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4,
                "must be [begin, end]"},
        Hostile{"PastTheEnd", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4,
                "ends at byte 8 of 4"},
        Hostile{"Overlap",
                R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                    "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                12, "overlapping"},
        Hostile{"Hole",
                R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                    "b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                12, "after a hole"},
        Hostile{"TrailingBytes", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
                "1 bytes after the last tensor"},
        Hostile{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
        Hostile{"MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "unexpected a number"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trainyard::weights
