#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "clients/cli/commands.h"

namespace trainyard::cli {
namespace {

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back(absl::StrCat("--", name));
  }
  return words;
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  std::vector<const CLI::App*> visible;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    if (!sub->get_group().empty()) visible.push_back(sub);  // hidden ones have no group
  }
  return visible;
}

// Whether the command has a positional argument JOB.
bool TakesJob(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() && option->get_name(true) == "JOB") return true;
  }
  return false;
}

std::vector<std::string> Words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* sub : CommandsOf(app)) words.push_back(sub->get_name());
  for (const std::string& option : OptionsOf(app)) words.push_back(option);
  return words;
}

// One `case` per command: what may follow it.
std::string BashCases(const CLI::App& app, const std::string& path) {
  std::string out;
  for (const CLI::App* sub : CommandsOf(app)) {
    const std::string here =
        path.empty() ? sub->get_name() : absl::StrCat(path, " ", sub->get_name());
    absl::StrAppend(&out, "    '", here, "') words='", absl::StrJoin(Words(*sub), " "), "'",
                    TakesJob(*sub) ? "; jobs=1" : "", " ;;\n", BashCases(*sub, here));
  }
  return out;
}

std::string Bash(const CLI::App& root) {
  constexpr char kScript[] = R"sh(# bash completion: source <(trainyard completion bash)
_trainyard() {
  local word=${COMP_WORDS[COMP_CWORD]} path='' words='' jobs='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in -*) ;; *) case "$path ${COMP_WORDS[i]}" in $NESTED$) path="$path ${COMP_WORDS[i]}" ;; *) [[ -z $path ]] && path=" ${COMP_WORDS[i]}" ;; esac ;; esac
  done
  case "${path# }" in
    '') words='$ROOT$' ;;
$CASES$  esac
  if [[ -n $jobs && $word != -* ]]; then
    words="$(trainyard ps --all --patience 0 -o name 2>/dev/null | sed 's|.*/||')"
  fi
  COMPREPLY=($(compgen -W "$words $GLOBAL$" -- "$word"))
  [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$word"))
}
complete -F _trainyard trainyard
)sh";
  std::vector<std::string> nested;
  for (const CLI::App* sub : CommandsOf(root)) {
    for (const CLI::App* leaf : CommandsOf(*sub)) {
      nested.push_back(absl::StrCat("' ", sub->get_name(), " ", leaf->get_name(), "'"));
    }
  }
  std::vector<std::string> commands;
  for (const CLI::App* sub : CommandsOf(root)) commands.push_back(sub->get_name());
  return absl::StrReplaceAll(kScript, {{"$NESTED$", absl::StrJoin(nested, "|")},
                                       {"$ROOT$", absl::StrJoin(commands, " ")},
                                       {"$CASES$", BashCases(root, "")},
                                       {"$GLOBAL$", absl::StrJoin(OptionsOf(root), " ")}});
}

std::string Fish(const CLI::App& root) {
  std::string out = "# fish completion: trainyard completion fish | source\n";
  const auto quoted = [](const std::string& text) {
    return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "\\'"}}), "'");
  };
  for (const CLI::App* sub : CommandsOf(root)) {
    const std::string& name = sub->get_name();
    absl::StrAppend(&out, "complete -c trainyard -f -n __fish_use_subcommand -a ", name, " -d ",
                    quoted(sub->get_description()), "\n");
    const std::string seen = absl::StrCat("'__fish_seen_subcommand_from ", name, "'");
    for (const CLI::App* leaf : CommandsOf(*sub)) {
      absl::StrAppend(&out, "complete -c trainyard -f -n ", seen, " -a ", leaf->get_name(), " -d ",
                      quoted(leaf->get_description()), "\n");
    }
    for (const std::string& option : OptionsOf(*sub)) {
      absl::StrAppend(&out, "complete -c trainyard -n ", seen, " -l ", option.substr(2), "\n");
    }
    if (TakesJob(*sub)) {
      absl::StrAppend(&out, "complete -c trainyard -f -n ", seen,
                      " -a '(trainyard ps --all --patience 0 -o name 2>/dev/null | "
                      "string replace -r \".*/\" \"\")'\n");
    }
  }
  for (const std::string& option : OptionsOf(root)) {
    absl::StrAppend(&out, "complete -c trainyard -l ", option.substr(2), "\n");
  }
  return out;
}

// zsh runs bash's completions.
std::string Zsh(const CLI::App& root) {
  return absl::StrCat(
      "# zsh completion: source <(trainyard completion zsh)\n"
      "autoload -U +X bashcompinit && bashcompinit\n",
      Bash(root));
}

}  // namespace

void AddCompletion(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand("completion", "Completion script for bash, zsh or fish");
  auto shell = std::make_shared<std::string>();  // lives as long as the command's body
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  session.SetBody(command, [&root, &session, shell]() -> absl::StatusOr<int> {
    session.out().Write(*shell == "bash" ? Bash(root) : *shell == "zsh" ? Zsh(root) : Fish(root));
    return kExitOk;
  });
}

}  // namespace trainyard::cli
