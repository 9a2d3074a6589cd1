#pragma once

// One YAML scalar into one protobuf field, checked against the field's type and range.

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace trainyard::text {

struct Scalar {
  std::string text;
  bool quoted = false;  // "5" is a string, 5 is a number
};

// What the field takes, for messages: "an integer", "true or false", "one of FP32, BF16, FP16".
std::string Expected(const google::protobuf::FieldDescriptor& field);

// Sets the field (adds to it when it is repeated). kInvalidArgument says what was found and what
// was expected, without the place: "'abc' is not an integer". NaN and infinity pass: whether a
// field may hold them is for validation to say.
absl::Status AssignScalar(google::protobuf::Message& message,
                          const google::protobuf::FieldDescriptor& field, const Scalar& scalar);

}  // namespace trainyard::text
