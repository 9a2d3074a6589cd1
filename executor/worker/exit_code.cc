#include "executor/worker/exit_code.h"

#include "executor/engine/fault.h"
#include "executor/run/run_directory.h"
#include "storage/base/printable.h"

namespace trainyard::worker {
namespace {

struct Meaning {
  v1::Failure::Category category;
  int exit_code;
};

Meaning MeaningOf(engine::Fault fault) {
  switch (fault) {
    case engine::Fault::kSpec:
      return {v1::Failure::USER, run::kExitUsage};
    case engine::Fault::kData:
      return {v1::Failure::USER, run::kExitData};
    case engine::Fault::kUnimplemented:
      return {v1::Failure::UNIMPLEMENTED, run::kExitUsage};
    case engine::Fault::kOutOfMemory:
      return {v1::Failure::OUT_OF_MEMORY, run::kExitDevice};
    case engine::Fault::kDevice:
      return {v1::Failure::DEVICE, run::kExitDevice};
    case engine::Fault::kStorage:
      return {v1::Failure::STORAGE, run::kExitStorage};
    case engine::Fault::kNumeric:
      return {v1::Failure::NUMERIC, run::kExitNumeric};
    case engine::Fault::kGang:
      return {v1::Failure::PEER, run::kExitGang};
    case engine::Fault::kInternal:
      return {v1::Failure::INTERNAL, run::kExitInternal};
  }
  return {v1::Failure::INTERNAL, run::kExitInternal};
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
         "   0  finished, or stopped with a checkpoint\n"
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
