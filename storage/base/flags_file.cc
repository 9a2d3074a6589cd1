#include "storage/base/flags_file.h"

#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/file.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"

namespace trainyard {
namespace {

constexpr char kConfig[] = "--config";
constexpr int64_t kMostBytes = 1 << 20;

// Takes the path out of `arguments`; nullopt: there is none.
absl::StatusOr<std::optional<std::string>> TakePath(std::vector<std::string>& arguments) {
  for (auto it = arguments.begin(); it != arguments.end(); ++it) {
    if (*it == "--") break;
    if (absl::StartsWith(*it, absl::StrCat(kConfig, "="))) {
      std::string path = it->substr(sizeof(kConfig));
      arguments.erase(it);
      return path;
    }
    if (*it != kConfig) continue;
    if (it + 1 == arguments.end()) {
      return absl::InvalidArgumentError(absl::StrCat(kConfig, ": expected a file behind it"));
    }
    std::string path = *(it + 1);
    arguments.erase(it, it + 2);
    return path;
  }
  return std::nullopt;
}

bool Says(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || absl::StartsWith(argument, flag + "=");
  });
}

absl::Status Wrong(const std::string& path, const YAML::Node& at, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", at.Mark().line + 1, ": ", EscapedLine(what)));
}

absl::Status AddFlag(const std::string& path, const std::string& flag, const YAML::Node& value,
                     std::vector<std::string>& flags) {
  if (value.IsSequence()) {
    for (const YAML::Node& one : value) {
      if (!one.IsScalar()) return Wrong(path, one, absl::StrCat(flag, ": expected values"));
      TY_RETURN_IF_ERROR(AddFlag(path, flag, one, flags));
    }
    return absl::OkStatus();
  }
  if (!value.IsScalar()) {
    return Wrong(path, value, absl::StrCat(flag, ": expected a value, or a list of values"));
  }
  if (value.Scalar().empty()) {  // "--flag=" would take what follows for its value
    flags.insert(flags.end(), {flag, ""});
  } else {
    flags.push_back(absl::StrCat(flag, "=", value.Scalar()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WithFlagsOfFile(std::vector<std::string> arguments,
                                                         const std::vector<std::string>& known) {
  TY_ASSIGN_OR_RETURN(const std::optional<std::string> path, TakePath(arguments));
  if (!path.has_value()) return arguments;
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(*path, kMostBytes));
  std::vector<std::string> flags;
  try {
    const YAML::Node file = YAML::Load(text);
    if (!file.IsMap() && !file.IsNull()) {
      return absl::InvalidArgumentError(
          absl::StrCat(*path, ": expected a mapping of flags, such as 'listen: 127.0.0.1:7070'"));
    }
    for (const auto& entry : file) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        return Wrong(*path, entry.first,
                     absl::StrCat("there is no flag '", name, "'", DidYouMean(name, known)));
      }
      const std::string flag = absl::StrCat("--", name);
      if (Says(arguments, flag)) continue;
      TY_RETURN_IF_ERROR(AddFlag(*path, flag, entry.second, flags));
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(*path, ":", error.mark.line + 1, ": ", EscapedLine(error.msg)));
  }
  flags.insert(flags.end(), std::make_move_iterator(arguments.begin()),
               std::make_move_iterator(arguments.end()));
  return flags;
}

void ParseFlags(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr() || option == app.get_version_ptr()) continue;
    known.insert(known.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  std::string file;  // for the help; it is taken out of the arguments
  app.add_option(kConfig, file, "YAML file with more of these flags: their names, without dashes");
  absl::StatusOr<std::vector<std::string>> arguments =
      WithFlagsOfFile({argv + 1, argv + argc}, known);
  if (!arguments.ok()) {
    throw CLI::ValidationError(kConfig, std::string(arguments.status().message()));
  }
  std::reverse(arguments->begin(), arguments->end());  // the order that CLI11 takes
  app.parse(*std::move(arguments));
}

}  // namespace trainyard
