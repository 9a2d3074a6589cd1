// trainyard-worker: one rank of a job, or a whole job alone.

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <thread>

#include "executor/run/confinement.h"
#include "executor/run/run_directory.h"
#include "executor/worker/alone.h"
#include "executor/worker/arithmetic_command.h"
#include "executor/worker/confine.h"
#include "executor/worker/exit_code.h"
#include "executor/worker/libraries_command.h"
#include "executor/worker/look_command.h"
#include "executor/worker/rank.h"
#include "executor/worker/sample_command.h"
#include "executor/worker/spin.h"
#include "executor/worker/standby.h"
#include "executor/worker/stop_signal.h"
#include "storage/base/log.h"

namespace trainyard::worker {
namespace {

struct Flags {
  RankOptions rank;
  bool standby = false;
  AloneOptions alone;
  std::string device;
  int threads = 1;
  SampleCommand sample;
  std::string asked_device = "cpu";
};

void Declare(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", std::string("trainyard-worker ") + TRAINYARD_VERSION);
  app.footer("\n" + ExitCodesText());
  auto* run_dir = app.add_option("--run-dir", flags.rank.run_directory,
                                 "run the rank assigned in this folder (used by the agent)");
  auto* standby = app.add_flag("--standby", flags.standby,
                               "wait warm for a rank, named by a JSON line on stdin");
  auto* spec = app.add_option("--spec", flags.alone.spec, "train this job file, with no server");
  app.add_option("--set", flags.alone.set, "set a field of the job file: field=value")->needs(spec);
  app.add_option("--out", flags.alone.out, "folder for the checkpoints of --spec")->needs(spec);
  app.add_flag("--resume", flags.alone.resume, "go on from the newest checkpoint in --out")
      ->needs(spec);
  app.add_option("--metrics", flags.alone.metrics,
                 "file to which every metric of --spec is added, a line of JSON for each step")
      ->needs(spec);
  auto* ranks = app.add_option("--ranks", flags.alone.ranks,
                               "train --spec on so many ranks, each a process with --threads")
                    ->check(CLI::Range(1, 1024))
                    ->needs(spec);
  app.add_flag("--tcp", flags.alone.tcp, "let ranks exchange by TCP, not by shared memory")
      ->needs(ranks);
  app.add_option("--device", flags.device, "cpu, cuda:I, or cuda: a GPU for each rank");
  app.add_option("--threads", flags.threads, "threads of the CPU")->check(CLI::Range(1, 4096));
  run_dir->excludes(standby)->excludes(spec);
  standby->excludes(spec);

  app.add_subcommand("look", "find out what the files of a job hold (used by the agent)");
  app.add_subcommand("libraries", "print which versions of the libraries that it calls are here");
  app.add_subcommand("arithmetic", "print what the last digits of results on a device depend on")
      ->add_option("--device", flags.asked_device, "cpu, or cuda:I")
      ->capture_default_str();
  CLI::App* sample = app.add_subcommand("sample", "print text that a trained language model makes");
  sample
      ->add_option("--checkpoint", flags.sample.checkpoint,
                   "a checkpoint, a folder of them (the newest), or FOLDER/best")
      ->required();
  sample->add_option("--prompt", flags.sample.prompt, "text to go on from");
  sample->add_option("--tokens", flags.sample.options.tokens, "how many to draw")
      ->check(CLI::Range(1, 100000000));
  sample
      ->add_option("--temperature", flags.sample.options.temperature,
                   "0: always the likeliest; 1: as the model says; default 0.8")
      ->check(CLI::Range(0.0, 100.0));
  sample->add_option("--top-k", flags.sample.options.top_k, "draw among the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber);
  sample
      ->add_option("--top-p", flags.sample.options.top_p,
                   "draw among the likeliest that together have this probability; default 1: all")
      ->check(CLI::Range(0.0, 1.0));
  sample->add_option("--seed", flags.sample.options.seed, "same seed, same text");
  sample->add_option("--device", flags.sample.device, "cpu, or cuda:I");
  sample->add_option("--threads", flags.sample.threads, "threads of the CPU")
      ->check(CLI::Range(1, 4096));
}

int Usage(const std::string& message) {
  std::cerr << "trainyard-worker: " << message << "\nRun with --help for more.\n";
  return run::kExitUsage;
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.threads = flags.sample.threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app("Trains one rank of a job, or a whole job alone.");
  Declare(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? run::kExitDone : run::kExitUsage;
  }
  SetUpLog("trainyard-worker");
  if (app.got_subcommand("sample")) return RunSample(flags.sample);
  const absl::StatusOr<std::optional<run::Roots>> confinement =
      run::ParseConfinement(getenv(run::kConfinementVariable));
  if (!confinement.ok()) return Usage(std::string(confinement.status().message()));
  if (app.got_subcommand("look")) return RunLook(confinement->value_or(run::Roots()));
  if (app.got_subcommand("libraries")) return RunLibraries();
  if (app.got_subcommand("arithmetic")) return RunArithmetic(flags.asked_device);

  flags.rank.threads = flags.threads;
  // Ranks share the cores.
  flags.alone.threads =
      app.count("--threads") > 0 ? flags.threads : std::max(1, flags.threads / flags.alone.ranks);
  flags.rank.device = flags.device.empty() ? "cpu" : flags.device;
  flags.alone.device = flags.device;
  if (!flags.alone.spec.empty()) {
    if (flags.alone.out.empty()) return Usage("--spec needs --out, a folder for the checkpoints");
    return RunAlone(flags.alone);
  }
  const bool confined = flags.standby && confinement->has_value();
  if (confined) {
    if (const absl::Status status = Confine(**confinement); !status.ok()) {
      return Usage(std::string(status.message()));
    }
  }
  CatchStopSignals(/*also_interrupt=*/false);
  if (!flags.rank.run_directory.empty()) return RunRank(flags.rank, nullptr);
  if (flags.standby) return RunStandby(flags.rank, !flags.device.empty(), confined);
  return Usage("nothing to do: give --spec, --run-dir or --standby");
}

}  // namespace
}  // namespace trainyard::worker

int main(int argc, char** argv) {
  trainyard::worker::SpinBriefly(argv);
  return trainyard::worker::Main(argc, argv);
}
