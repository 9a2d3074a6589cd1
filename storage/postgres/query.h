#pragma once

namespace trainyard::postgres {

// A named statement from sql/, prepared once per connection.
struct Query {
  const char* name;
  const char* text;
};

}  // namespace trainyard::postgres
