#include "server/fleet/provision/pools.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/file.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"
#include "storage/records/node_request.h"

namespace trainyard {
namespace {

constexpr int64_t kMostBytes = 1 << 20;
constexpr size_t kLongestName = 40;  // eight digits and a number follow, within 63
constexpr int kMostNodes = 10000;
constexpr absl::Duration kLongestLeave = absl::Seconds(65535);
constexpr int kMostSlots = 64;
constexpr int kMostPossibleSlots = 4096;  // a gang of more is refused

// What Trainyard itself says to sbatch.
constexpr const char* kOwnOptions[] = {
    "--array",      "--comment",  "--export",    "--job-name", "--clusters",
    "--uid",        "--gid",      "--test-only", "--wrap",     "--export-file",
    "--no-requeue", "--parsable", "--requeue",   "--signal",   "--wait",
    "-J",           "-a",         "-W"};

class PoolsReader {
 public:
  explicit PoolsReader(const std::string& path) : path_(path) {}

  absl::StatusOr<std::vector<Pool>> Read(const YAML::Node& file) {
    std::vector<Pool> pools;
    TY_RETURN_IF_ERROR(ForEach(file, "the file", {{"pools", [&](const YAML::Node& list) {
                                                     return ReadAll(list, pools);
                                                   }}}));
    return pools;
  }

 private:
  using Field = std::function<absl::Status(const YAML::Node&)>;

  absl::Status Wrong(const YAML::Node& at, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", at.Mark().line + 1, ": ", EscapedLine(what)));
  }

  absl::Status ForEach(const YAML::Node& map, const std::string& what,
                       const std::map<std::string, Field>& fields) {
    if (!map.IsMap()) {
      return Wrong(map, absl::StrCat(what, ": expected a mapping, such as '", fields.begin()->first,
                                     ": …'"));
    }
    std::vector<std::string> known;
    for (const auto& [name, read] : fields) known.push_back(name);
    for (const auto& entry : map) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      const auto field = fields.find(name);
      if (field == fields.end()) {
        return Wrong(entry.first,
                     absl::StrCat(what, " has no field '", name, "'", DidYouMean(name, known)));
      }
      TY_RETURN_IF_ERROR(field->second(entry.second));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Text(const YAML::Node& value, const char* field) {
    if (value.IsScalar() && !value.Scalar().empty()) return value.Scalar();
    return Wrong(value, absl::StrCat(field, ": expected a text"));
  }

  Field Number(const char* field, int least, int most, int& out) {
    return [this, field, least, most, &out](const YAML::Node& value) -> absl::Status {
      TY_ASSIGN_OR_RETURN(const std::string text, Text(value, field));
      if (absl::SimpleAtoi(text, &out) && out >= least && out <= most) return absl::OkStatus();
      return Wrong(value,
                   absl::StrCat(field, ": found '", text, "', expected ", least, " to ", most));
    };
  }

  Field Duration(const char* field, absl::Duration least, absl::Duration& out) {
    return [this, field, least, &out](const YAML::Node& value) -> absl::Status {
      TY_ASSIGN_OR_RETURN(const std::string text, Text(value, field));
      if (absl::ParseDuration(text, &out) && out >= least && out <= absl::Hours(24 * 366)) {
        return absl::OkStatus();
      }
      return Wrong(value, absl::StrCat(field, ": found '", text, "', expected a time of at least ",
                                       absl::FormatDuration(least), ", such as 90s, 10m or 1h30m"));
    };
  }

  absl::Status Bytes(const YAML::Node& value, int64_t& out) {
    TY_ASSIGN_OR_RETURN(const std::string text, Text(value, "memory"));
    absl::string_view number = text;
    int shift = 0;
    for (const auto& [unit, bits] : {std::pair("KiB", 10), {"MiB", 20}, {"GiB", 30}}) {
      if (absl::EndsWith(number, unit)) {
        number.remove_suffix(3);
        shift = bits;
        break;
      }
    }
    double count = 0;
    if (shift > 0 && absl::SimpleAtod(absl::StripAsciiWhitespace(number), &count) && count > 0 &&
        count * static_cast<double>(int64_t{1} << shift) < 1e15) {
      out = static_cast<int64_t>(count * static_cast<double>(int64_t{1} << shift));
      return absl::OkStatus();
    }
    return Wrong(value, absl::StrCat("memory: found '", text,
                                     "', expected what each slot has, such as 80GiB"));
  }

  absl::Status Engine(const YAML::Node& value) {
    TY_ASSIGN_OR_RETURN(const std::string text, Text(value, "engine"));
    if (text == "slurm") return absl::OkStatus();
    return Wrong(value, absl::StrCat("engine: found '", text, "', expected slurm"));
  }

  absl::Status Device(const YAML::Node& value, std::string& out) {
    TY_ASSIGN_OR_RETURN(out, Text(value, "device"));
    if (out == "CPU" || out == "CUDA") return absl::OkStatus();
    return Wrong(value, absl::StrCat("device: found '", out, "', expected CPU or CUDA"));
  }

  absl::Status Option(const YAML::Node& value, std::vector<std::string>& options) {
    TY_ASSIGN_OR_RETURN(const std::string text, Text(value, "options"));
    const std::string name = text.substr(0, text.find('='));
    if (!absl::StartsWith(text, "-")) {
      return Wrong(value, absl::StrCat("options: found '", text,
                                       "', expected an option of sbatch with its value, such as "
                                       "--partition=gpu"));
    }
    // getopt takes the beginning of a long option for it, and a value behind a short one.
    const bool own =
        std::any_of(std::begin(kOwnOptions), std::end(kOwnOptions), [&](absl::string_view one) {
          const bool is_long = absl::StartsWith(one, "--");
          return is_long ? name.size() > 2 && absl::StartsWith(one, name)
                         : absl::StartsWith(name, one);
        });
    if (own) {
      return Wrong(value, absl::StrCat("options: ", name,
                                       " is the server's own, or leads to where it does not look"));
    }
    options.push_back(text);
    return absl::OkStatus();
  }

  absl::Status ReadSlurm(const YAML::Node& map, SlurmPool& slurm) {
    TY_RETURN_IF_ERROR(
        ForEach(map, "slurm",
                {{"script",
                  [&](const YAML::Node& value) -> absl::Status {
                    TY_ASSIGN_OR_RETURN(slurm.script, Text(value, "script"));
                    if (slurm.script[0] == '/') return absl::OkStatus();
                    return Wrong(value, absl::StrCat("script: found '", slurm.script,
                                                     "', expected an absolute path"));
                  }},
                 {"options",
                  [&](const YAML::Node& list) -> absl::Status {
                    if (!list.IsSequence()) {
                      return Wrong(list, "options: expected a list, such as ['--partition=gpu']");
                    }
                    for (const YAML::Node& one : list)
                      TY_RETURN_IF_ERROR(Option(one, slurm.options));
                    return absl::OkStatus();
                  }},
                 {"leave", Duration("leave", absl::Seconds(1), slurm.leave)}}));
    if (slurm.leave > kLongestLeave) {
      return Wrong(map,
                   absl::StrCat("leave: expected at most ", absl::FormatDuration(kLongestLeave),
                                ", for which Slurm can signal before the end"));
    }
    if (!slurm.script.empty()) return absl::OkStatus();
    return Wrong(map, "slurm: script is missing: the batch script that starts an agent");
  }

  absl::Status ReadNode(const YAML::Node& map, Pool& pool) {
    TY_RETURN_IF_ERROR(
        ForEach(map, "node",
                {{"device", [&](const YAML::Node& value) { return Device(value, pool.device); }},
                 {"slots", Number("slots", 1, kMostSlots, pool.slots)},
                 {"memory", [&](const YAML::Node& value) { return Bytes(value, pool.bytes); }}}));
    if (!pool.device.empty() && pool.bytes > 0) return absl::OkStatus();
    return Wrong(map, "node: device and memory are needed: what one node of the pool brings");
  }

  absl::Status ReadPool(const YAML::Node& map, Pool& pool) {
    bool engine = false, node = false, slurm = false;
    TY_RETURN_IF_ERROR(
        ForEach(map, absl::StrCat("pool '", pool.name, "'"),
                {{"engine",
                  [&](const YAML::Node& value) {
                    engine = true;
                    return Engine(value);
                  }},
                 {"min", Number("min", 0, kMostNodes, pool.min)},
                 {"max", Number("max", 1, kMostNodes, pool.max)},
                 {"idle_ttl", Duration("idle_ttl", absl::Seconds(1), pool.idle_ttl)},
                 {"boot_timeout", Duration("boot_timeout", absl::Seconds(1), pool.boot_timeout)},
                 {"node",
                  [&](const YAML::Node& value) {
                    node = true;
                    return ReadNode(value, pool);
                  }},
                 {"slurm", [&](const YAML::Node& value) {
                    slurm = true;
                    return ReadSlurm(value, pool.slurm);
                  }}}));
    if (!engine || !node || !slurm || pool.max == 0) {
      return Wrong(map,
                   absl::StrCat("pool '", pool.name, "': engine, max, node and slurm are needed"));
    }
    if (pool.min <= pool.max) return absl::OkStatus();
    return Wrong(map, absl::StrCat("pool '", pool.name, "': min is more than max"));
  }

  absl::Status ReadAll(const YAML::Node& map, std::vector<Pool>& pools) {
    if (!map.IsMap()) return Wrong(map, "pools: expected a mapping, from the name of each pool");
    std::set<std::string> names;
    for (const auto& entry : map) {
      Pool pool{.name = entry.first.IsScalar() ? entry.first.Scalar() : ""};
      const bool letters = std::all_of(pool.name.begin(), pool.name.end(), [](char c) {
        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
      });
      if (!letters || pool.name.empty() || pool.name.size() > kLongestName || pool.name[0] == '-') {
        return Wrong(entry.first, absl::StrCat("'", pool.name, "' is no name of a pool: expected ",
                                               "[a-z0-9][a-z0-9-]{0,", kLongestName - 1, "}"));
      }
      if (!names.insert(pool.name).second) {
        return Wrong(entry.first, absl::StrCat("pool '", pool.name, "' stands there twice"));
      }
      TY_RETURN_IF_ERROR(ReadPool(entry.second, pool));
      pools.push_back(std::move(pool));
    }
    return absl::OkStatus();
  }

  const std::string path_;
};

}  // namespace

absl::StatusOr<std::vector<Pool>> ParsePools(const std::string& path, const std::string& text) {
  try {
    return PoolsReader(path).Read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": ", EscapedLine(error.msg)));
  }
}

absl::StatusOr<std::vector<Pool>> ReadPools(const std::string& path) {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMostBytes));
  return ParsePools(path, text);
}

bool IsOfPool(const std::vector<Pool>& pools, const std::string& node) {
  const std::string ask = ParseAskedName(node).ask;
  const size_t dash = ask.rfind('-');
  return ask != node && dash != std::string::npos &&
         std::any_of(pools.begin(), pools.end(),
                     [&](const Pool& pool) { return pool.name == ask.substr(0, dash); });
}

std::vector<NodeRecord> PossibleNodes(const std::vector<Pool>& pools) {
  std::vector<NodeRecord> nodes;
  for (const Pool& pool : pools) {
    NodeRecord& node = nodes.emplace_back();
    node.name = absl::StrCat("pool ", pool.name);
    for (int i = 0; i < std::min(pool.max * pool.slots, kMostPossibleSlots); ++i) {
      node.slots.push_back(
          {.index = i, .device = pool.device, .model = pool.device, .memory_bytes = pool.bytes});
    }
  }
  return nodes;
}

}  // namespace trainyard
