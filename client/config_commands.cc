// `phalanx config ...`.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/config.h"
#include "client/exit_code.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/json.h"
#include "core/posix/unique_fd.h"

namespace phalanx::client {
namespace {

using job::Tree;

int WriteAndSay(const std::string& path, const Config& config, const std::string& said, Io& io) {
  if (const absl::Status status = WriteConfig(path, config); !status.ok()) {
    Fail(status, io);
    return kCannotCreate;
  }
  io.talk << TerminalText(said) << "\n";
  return kSuccess;
}

int NoSuchContext(const std::string& path, const std::string& context, Io& io) {
  io.talk << "error: " << TerminalText(path) << " has no context \"" << LineText(context)
          << "\"; phalanx config list shows those that there are\n";
  return kBadConfig;
}

}  // namespace

int FailSettings(const absl::Status& status, Io& io) {
  Fail(status, io);
  return absl::IsInvalidArgument(status) ? kUsage : kBadConfig;
}

int ConfigShow(const Settings& settings, Format format, Io& io) {
  std::vector<std::pair<std::string, Setting>> rows = {{"context", settings.context}};
  for (const SettingField& field : SettingFields()) {
    Setting setting = settings.fields.at(field.name);
    if (setting.value.empty()) setting.value = field.fallback;
    if (setting.value.empty()) continue;
    rows.emplace_back(field.name, std::move(setting));
  }
  if (format == Format::kJson || format == Format::kYaml) {
    Tree tree = job::MappingTree({{"file", job::TextTree(settings.path)}});
    for (const auto& [name, setting] : rows) {
      tree.entries.push_back({name, job::MappingTree({{"value", job::TextTree(setting.value)},
                                                      {"from", job::TextTree(setting.from)}})});
    }
    PrintTree(tree, format, io.out);
    return kSuccess;
  }
  if (format == Format::kName) {
    if (!settings.context.value.empty()) io.out << settings.context.value << "\n";
    return kSuccess;
  }
  Table table({"SETTING", "VALUE", "FROM"});
  for (const auto& [name, setting] : rows) {
    table.Add({name, setting.value.empty() ? "-" : setting.value, setting.from});
  }
  table.Print(io.out);
  return kSuccess;
}

int ConfigList(const std::string& path, Format format, Io& io) {
  const absl::StatusOr<Config> config = ReadConfig(path);
  if (!config.ok()) return FailSettings(config.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    std::vector<Tree> contexts;
    for (const auto& [name, context] : config->contexts) {
      Tree tree = job::MappingTree({{"name", job::TextTree(name)},
                                    {"current", job::FlagTree(name == config->current.text)}});
      for (const auto& [field, value] : context) {
        tree.entries.push_back({field, job::TextTree(value.text)});
      }
      contexts.push_back(std::move(tree));
    }
    PrintTree(job::MappingTree({{"contexts", job::ListTree(std::move(contexts))}}), format, io.out);
    return kSuccess;
  }
  if (format == Format::kName) {
    for (const auto& [name, context] : config->contexts) io.out << name << "\n";
    return kSuccess;
  }
  if (config->contexts.empty()) {
    io.talk << "no contexts; phalanx config set NAME server=HOST:PORT makes one\n";
    return kSuccess;
  }
  std::vector<std::string> header = {"CURRENT", "NAME"};
  std::vector<SettingField> columns;
  for (const SettingField& field : SettingFields()) {
    const bool said =
        std::any_of(config->contexts.begin(), config->contexts.end(),
                    [&field](const auto& context) { return context.second.contains(field.name); });
    if (said || field.fallback[0] != '\0') columns.push_back(field);
  }
  for (const SettingField& field : columns) {
    header.push_back(absl::AsciiStrToUpper(field.name));
  }
  Table table(std::move(header));
  for (const auto& [name, context] : config->contexts) {
    std::vector<std::string> row = {name == config->current.text ? "*" : "", name};
    for (const SettingField& field : columns) {
      const auto found = context.find(field.name);
      row.push_back(found == context.end() ? "-" : found->second.text);
    }
    table.Add(std::move(row));
  }
  table.Print(io.out, io.headers);
  return kSuccess;
}

int ConfigUse(const std::string& path, const std::string& context, Io& io) {
  const absl::StatusOr<UniqueFd> held = HoldConfig(path);
  if (!held.ok()) return FailSettings(held.status(), io);
  absl::StatusOr<Config> config = ReadConfig(path);
  if (!config.ok()) return FailSettings(config.status(), io);
  if (!config->contexts.contains(context)) return NoSuchContext(path, context, io);
  config->current = {.text = context};
  return WriteAndSay(path, *config, absl::StrCat("the current context is ", context), io);
}

int ConfigSet(const std::string& path, const std::string& context,
              const std::vector<std::string>& settings, Io& io) {
  const absl::StatusOr<UniqueFd> held = HoldConfig(path);
  if (!held.ok()) return FailSettings(held.status(), io);
  absl::StatusOr<Config> config = ReadConfig(path);
  if (!config.ok()) return FailSettings(config.status(), io);
  std::vector<Violation> violations;
  if (std::string fault = ContextNameFault(context); !fault.empty()) {
    violations.push_back({.field = "CONTEXT", .value = context, .rule = std::move(fault)});
  } else if (!config->contexts.contains(context) && config->contexts.size() >= kContextsMax) {
    violations.push_back(
        {.field = "CONTEXT",
         .value = context,
         .rule = absl::StrCat("there are ", kContextsMax, " contexts already; delete one")});
  }
  Context& changed = config->contexts[context];
  std::set<std::string> named;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const SettingField* field = FindSettingField(name);
    if (equals == std::string::npos || field == nullptr) {
      violations.push_back(
          {.field = "SETTING",
           .value = setting,
           .rule = absl::StrCat("must be one of ", SettingNames(), ", then = and its value")});
      continue;
    }
    const std::string value = setting.substr(equals + 1);
    if (!named.insert(name).second) {
      violations.push_back({.field = name, .value = value, .rule = "is given twice"});
      continue;
    }
    changed.erase(name);
    if (value.empty()) continue;
    if (std::string fault = field->fault(value); !fault.empty()) {
      violations.push_back({.field = name, .value = value, .rule = std::move(fault)});
    } else {
      changed[name] = {.text = value};
    }
  }
  if (!violations.empty()) {
    Fail(ViolationsStatus(violations), io);
    return kUsage;
  }
  std::string said = absl::StrCat("context ", context, " is set");
  if (config->current.text.empty()) {
    config->current = {.text = context};
    absl::StrAppend(&said, ", and is the current one");
  }
  return WriteAndSay(path, *config, said, io);
}

int ConfigDelete(const std::string& path, const std::string& context, Io& io) {
  const absl::StatusOr<UniqueFd> held = HoldConfig(path);
  if (!held.ok()) return FailSettings(held.status(), io);
  absl::StatusOr<Config> config = ReadConfig(path);
  if (!config.ok()) return FailSettings(config.status(), io);
  if (config->contexts.erase(context) == 0) return NoSuchContext(path, context, io);
  std::string said = absl::StrCat("deleted context ", context);
  if (config->current.text == context) {
    config->current = {};
    absl::StrAppend(&said, "; none is the current one now, phalanx config use NAME chooses one");
  }
  return WriteAndSay(path, *config, said, io);
}

}  // namespace phalanx::client
