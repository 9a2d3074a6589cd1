#include "executor/worker/exit_code.h"

#include <algorithm>
#include <iterator>

#include "executor/engine/fault.h"
#include "executor/run/run_directory.h"
#include "storage/base/printable.h"

namespace trainyard::worker {
namespace {

struct Meaning {
  engine::Fault fault;
  v1::Failure::Category category;
  int exit_code;
};

constexpr Meaning kMeanings[] = {
    {engine::Fault::kSpec, v1::Failure::USER, run::kExitUsage},
    {engine::Fault::kData, v1::Failure::USER, run::kExitData},
    {engine::Fault::kUnimplemented, v1::Failure::UNIMPLEMENTED, run::kExitUsage},
    {engine::Fault::kOutOfMemory, v1::Failure::OUT_OF_MEMORY, run::kExitDevice},
    {engine::Fault::kDevice, v1::Failure::DEVICE, run::kExitDevice},
    {engine::Fault::kStorage, v1::Failure::STORAGE, run::kExitStorage},
    {engine::Fault::kNumeric, v1::Failure::NUMERIC, run::kExitNumeric},
    {engine::Fault::kGang, v1::Failure::PEER, run::kExitGang},
    {engine::Fault::kInternal, v1::Failure::INTERNAL, run::kExitInternal}};

const Meaning& MeaningOf(engine::Fault fault) {
  const Meaning* const last = std::end(kMeanings) - 1;  // for a fault that is not in the table, too
  return *std::find_if(std::begin(kMeanings), last,
                       [&](const Meaning& meaning) { return meaning.fault == fault; });
}

}  // namespace

int ExitCodeOf(const absl::Status& status) {
  return status.ok() ? run::kExitDone : MeaningOf(engine::FaultOf(status)).exit_code;
}

v1::Failure FailureOf(const absl::Status& status) {
  v1::Failure failure;
  failure.set_category(MeaningOf(engine::FaultOf(status)).category);
  failure.set_message(Printable(status.message()));
  failure.set_retryable(engine::Retryable(status));
  failure.set_rolled_back(engine::RolledBack(status));
  return failure;
}

std::string ExitCodesText() {
  return "Exit codes:\n"
         "   0  finished, or stopped: its state is saved or kept\n"
         "  64  wrong command line or spec, or a field that is not built yet\n"
         "  65  data missing or malformed\n"
         "  70  a defect of Trainyard\n"
         "  71  device fault, or not enough memory\n"
         "  74  a checkpoint could not be written or read, or a disk failed\n"
         "  75  the lease ended\n"
         "  76  loss or gradient became NaN or infinite\n"
         "  77  another rank failed, or the link to it\n";
}

}  // namespace trainyard::worker
