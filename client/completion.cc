#include "client/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace phalanx::client {
namespace {

std::string NamesOf(const std::vector<CommandWords>& commands) {
  return absl::StrJoin(commands, " ", [](std::string* out, const CommandWords& command) {
    absl::StrAppend(out, command.name);
  });
}

// Options of the command being typed, job files after it.
std::string BashFunction(const std::vector<CommandWords>& commands) {
  std::string text = absl::StrCat(
      "_phalanx() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\" command= "
      "i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \" ",
      NamesOf(commands),
      " \" in *\" ${COMP_WORDS[i]} \"*) command=\"${COMP_WORDS[i]}\"; break;; esac\n"
      "  done\n"
      "  case \"$before\" in -o|--output-format) COMPREPLY=($(compgen -W 'table wide json yaml "
      "name' -- \"$word\")); return;; esac\n"
      "  case \"$command\" in\n"
      "    '') COMPREPLY=($(compgen -W '",
      NamesOf(commands), " --context --server --timeout --help' -- \"$word\"));;\n");
  for (const CommandWords& command : commands) {
    absl::StrAppend(
        &text, "    ", command.name, ") if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '",
        absl::StrJoin(command.options, " "), "' -- \"$word\")); else COMPREPLY=($(compgen -f -W '",
        absl::StrJoin(command.commands, " "), "' -- \"$word\")); fi;;\n");
  }
  return text + "  esac\n}\n";
}

std::string FishScript(const std::vector<CommandWords>& commands) {
  std::string text;
  const std::string names = NamesOf(commands);
  for (const CommandWords& command : commands) {
    const std::string description = absl::StrReplaceAll(command.description, {{"'", "\\'"}});
    absl::StrAppend(&text, "complete -c phalanx -n 'not __fish_seen_subcommand_from ", names,
                    "' -f -a ", command.name, " -d '", description, "'\n");
    for (const std::string& below : command.commands) {
      absl::StrAppend(&text, "complete -c phalanx -n '__fish_seen_subcommand_from ", command.name,
                      "' -a ", below, "\n");
    }
    for (absl::string_view option : command.options) {
      const bool is_long = absl::ConsumePrefix(&option, "--");
      if (!is_long) absl::ConsumePrefix(&option, "-");
      absl::StrAppend(&text, "complete -c phalanx -n '__fish_seen_subcommand_from ", command.name,
                      "' -", is_long ? "l " : "s ", option, "\n");
    }
  }
  return text;
}

}  // namespace

std::string CompletionScript(absl::string_view shell, const std::vector<CommandWords>& commands) {
  if (shell == "bash")
    return BashFunction(commands) + "complete -o filenames -F _phalanx phalanx\n";
  if (shell == "zsh") {
    return "#compdef phalanx\nautoload -U +X bashcompinit && bashcompinit\n" +
           BashFunction(commands) + "complete -o filenames -F _phalanx phalanx\n";
  }
  if (shell == "fish") return FishScript(commands);
  return "";
}

}  // namespace phalanx::client
