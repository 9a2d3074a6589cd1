#pragma once

// Macros over absl::Status, and the check that ends a process on a bug.

#include <cstdlib>
#include <iostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns the status of `expr` from the current function unless it is OK.
#define TY_RETURN_IF_ERROR(expr)             \
  do {                                       \
    absl::Status ty_status_ = (expr);        \
    if (!ty_status_.ok()) return ty_status_; \
  } while (false)

// TY_ASSIGN_OR_RETURN(auto x, F()); returns the status unless F() holds a value.
#define TY_ASSIGN_OR_RETURN(lhs, expr) \
  TY_ASSIGN_OR_RETURN_(TY_CONCAT_(ty_statusor_, __LINE__), lhs, expr)
#define TY_ASSIGN_OR_RETURN_(var, lhs, expr) \
  auto var = (expr);                         \
  if (!var.ok()) return var.status();        \
  lhs = *std::move(var)
#define TY_CONCAT_(a, b) TY_CONCAT_INNER_(a, b)
#define TY_CONCAT_INNER_(a, b) a##b

// Aborts the process when `cond` does not hold: for conditions that only a bug in this program can
// break. The message is anything that absl::StrCat takes: TY_CHECK(n > 0, "n = ", n).
#define TY_CHECK(cond, ...)                                                                        \
  do {                                                                                             \
    if (!(cond)) ::trainyard::CheckFailed(__FILE__, __LINE__, #cond, ::absl::StrCat(__VA_ARGS__)); \
  } while (false)

namespace trainyard {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition,
                                     const std::string& message) {
  std::cerr << file << ":" << line << ": check failed: " << condition
            << (message.empty() ? "" : ": ") << message << std::endl;
  std::abort();
}

// Returns `status` with "`context`: " put before its message; its payloads are kept.
inline absl::Status Annotate(const absl::Status& status, const std::string& context) {
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    annotated.SetPayload(type, payload);
  });
  return annotated;
}

}  // namespace trainyard
