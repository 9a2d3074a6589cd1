#include "executor/worker/look_command.h"

#include <errno.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/facts/facts_message.h"
#include "executor/facts/look.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/sizing.h"
#include "executor/run/orders.h"
#include "executor/run/run_directory.h"
#include "executor/worker/become_user.h"
#include "storage/base/file.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::worker {
namespace {

constexpr rlim_t kMostMemory = rlim_t{512} << 20;
constexpr unsigned kMostSeconds = 30;  // the agent waits less long; it may be gone
constexpr size_t kLargestRequest = size_t{4} << 20;

// `begun`: what of the request was read with the orders.
absl::Status Prepare(const run::Roots& roots, std::string& begun) {
  alarm(kMostSeconds);  // to open a root may hang
  TY_RETURN_IF_ERROR(Confine(roots));
  run::OrdersReader reader;
  while (!reader.done()) TY_RETURN_IF_ERROR(reader.Read(STDIN_FILENO));
  begun = reader.rest();
  TY_ASSIGN_OR_RETURN(const run::Orders orders, run::ParseOrders(reader.line()));
  TakeEnvironment(orders);
  if (orders.user) TY_RETURN_IF_ERROR(BecomeUser(*orders.user));
  if (TRAINYARD_FILTERS_CALLS == 1) {  // sanitizers reserve more than any limit
    const rlimit memory{kMostMemory, kMostMemory};
    setrlimit(RLIMIT_DATA, &memory);
  }
  TY_RETURN_IF_ERROR(ConfineToOneProcess());
  return ConfineToNoNetwork();
}

absl::StatusOr<v1::LookRequest> ReadRequest(std::string bytes) {
  char piece[16384];
  for (;;) {
    const ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "stdin");
    if (n == 0) break;
    bytes.append(piece, n);
    if (bytes.size() > kLargestRequest) return absl::InvalidArgumentError("spec: too large");
  }
  v1::LookRequest request;
  if (request.ParseFromString(bytes)) return request;
  return absl::InternalError("the request cannot be read");
}

absl::StatusOr<plan::DataFacts> FactsOf(const v1::LookRequest& request, bool& unseen) {
  const v1::JobSpec& spec = request.spec();
  TY_ASSIGN_OR_RETURN(const plan::DataFacts facts,
                      facts::Look(spec, absl::StrCat("user ", request.unix_user()), unseen));
  if (spec.fine_tune().from().empty()) return facts;
  TY_ASSIGN_OR_RETURN(const plan::Plan plan, plan::PlanForAnyRanks(spec, facts));
  TY_RETURN_IF_ERROR(facts::CheckStart(spec, plan));
  return facts;
}

absl::StatusOr<plan::DataFacts> LookAt(const v1::LookRequest& request, bool& unseen) {
  try {
    return FactsOf(request, unseen);
  } catch (const std::bad_alloc&) {
    return absl::FailedPreconditionError(absl::StrCat(
        "to look at the files takes more than ", kMostMemory >> 20,
        " MiB of memory: give the data in smaller or simpler files (token files, for a text)"));
  }
}

}  // namespace

int RunLook(const run::Roots& roots) {
  std::string begun;
  const absl::Status prepared = Prepare(roots, begun);
  if (!prepared.ok()) {
    spdlog::error("{}", std::string(prepared.message()));
    return run::kExitInternal;
  }
  const absl::StatusOr<v1::LookRequest> request = ReadRequest(std::move(begun));
  bool unseen = false;
  const absl::StatusOr<plan::DataFacts> facts =
      request.ok() ? LookAt(*request, unseen) : request.status();
  v1::LookAnswer answer;
  answer.set_request_id(request.ok() ? request->request_id() : "");
  if (facts.ok()) {
    *answer.mutable_facts() = facts::ToMessage(*facts);
  } else {
    answer.mutable_error()->set_code(static_cast<int>(facts.status().code()));
    answer.mutable_error()->set_message(Printable(facts.status().message()));
    answer.mutable_error()->set_unseen(unseen);
  }
  const absl::Status told = WriteAll(STDIN_FILENO, answer.SerializeAsString(), "the answer");
  return told.ok() ? run::kExitDone : run::kExitInternal;
}

}  // namespace trainyard::worker
