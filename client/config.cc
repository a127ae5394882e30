#include "client/config.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "core/base/cut_text.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/json.h"
#include "core/job/scalar.h"
#include "core/posix/whole_file.h"
#include "core/wire/job_yaml.h"

namespace phalanx::client {
namespace {

namespace fs = std::filesystem;

using job::Tree;

constexpr size_t kNameBytesMax = 63;
constexpr size_t kValueBytesShown = 64;
constexpr int kHoldTries = 250;
constexpr absl::Duration kHoldPause = absl::Milliseconds(20);
constexpr char kContextVariable[] = "PHALANX_CONTEXT";

// A link stays one.
fs::path TargetOf(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  return error ? fs::path(path) : target;
}

fs::path FolderOfFile(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

std::string ServerFault(const std::string& value) {
  return ParseHostPorts(value, 1).ok() ? "" : "must be HOST:PORT such as 10.0.0.5:4444";
}

std::string OutputFault(const std::string& value) {
  return ParseFormat(value).has_value() ? "" : "must be table, wide, json, yaml or name";
}

std::string TimeoutFault(const std::string& value) {
  const auto timeout = job::ParseDuration(value);
  const bool fits = timeout && *timeout > absl::ZeroDuration() && *timeout <= absl::Hours(24);
  return fits ? "" : "must be a duration of at most 24h such as 5s";
}

std::string PathFault(const std::string& value) {
  // In the file of a config, whoever reads it may be in any folder.
  return fs::path(value).is_absolute() ? "" : "must be an absolute path";
}

std::string YesNoFault(const std::string& value) {
  return value == "true" || value == "false" ? "" : "must be true or false";
}

// "unknown field; did you mean server?", or which there are.
std::string UnknownField(absl::string_view name, const std::vector<absl::string_view>& known) {
  const auto near = job::NearestName(name, known);
  if (near.has_value()) return absl::StrCat("unknown field; did you mean ", *near, "?");
  return absl::StrCat("unknown field; there are ", absl::StrJoin(known, ", "));
}

std::vector<absl::string_view> FieldNames() {
  std::vector<absl::string_view> names;
  for (const SettingField& field : SettingFields()) names.push_back(field.name);
  return names;
}

// Reads a tree as a config, and notes everything that is wrong with it.
class Reader {
 public:
  Config Read(const Tree& tree) {
    if (tree.kind == Tree::Kind::kNull) return {};
    Entries("", tree, [this](const std::string& key, const Tree& value) {
      if (key == "current") {
        config_.current = Scalar(key, value);
      } else if (key == "contexts") {
        ReadContexts(value);
      } else {
        Add(key, value, UnknownField(key, {"current", "contexts"}));
      }
    });
    const std::string& current = config_.current.text;
    if (!current.empty() && !config_.contexts.contains(current)) {
      violations_.push_back({.field = "current",
                             .value = CutText(current, kValueBytesShown),
                             .rule = "must be the name of one of the contexts",
                             .line = config_.current.line});
    }
    return std::move(config_);
  }
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  template <typename Visit>
  void Entries(const std::string& path, const Tree& tree, const Visit& visit) {
    if (tree.kind == Tree::Kind::kNull) return;
    if (tree.kind != Tree::Kind::kMapping) return Add(path, tree, "must be a mapping");
    std::set<std::string> seen;
    for (const auto& [key, value] : tree.entries) {
      if (!seen.insert(key).second) {
        Add(path.empty() ? key : absl::StrCat(path, ".", key), value, "is there twice");
      } else {
        visit(key, value);
      }
    }
  }

  void ReadContexts(const Tree& tree) {
    if (tree.entries.size() > kContextsMax) {
      return Add("contexts", tree, absl::StrCat("at most ", kContextsMax, " may be there"));
    }
    Entries("contexts", tree, [this](const std::string& name, const Tree& value) {
      const std::string path = absl::StrCat("contexts.", CutText(name, kValueBytesShown));
      if (std::string fault = ContextNameFault(name); !fault.empty())
        return Add(path, value, fault);
      Context& context = config_.contexts[name];
      Entries(path, value, [&](const std::string& key, const Tree& setting) {
        const std::string at = absl::StrCat(path, ".", CutText(key, kValueBytesShown));
        const SettingField* field = FindSettingField(key);
        if (field == nullptr) return Add(at, setting, UnknownField(key, FieldNames()));
        ConfigValue read = Scalar(at, setting);
        if (read.text.empty()) return;
        if (std::string fault = field->fault(read.text); !fault.empty()) {
          return Add(at, setting, fault);
        }
        context[key] = std::move(read);
      });
    });
  }

  ConfigValue Scalar(const std::string& path, const Tree& tree) {
    if (tree.kind == Tree::Kind::kScalar) return {.text = tree.scalar, .line = tree.line};
    if (tree.kind != Tree::Kind::kNull) Add(path, tree, "must be a text");
    return {};
  }

  void Add(const std::string& field, const Tree& tree, std::string rule) {
    const bool scalar = tree.kind == Tree::Kind::kScalar;
    violations_.push_back({.field = field,
                           .value = scalar ? CutText(tree.scalar, kValueBytesShown) : "",
                           .rule = std::move(rule),
                           .line = tree.line});
  }

  Config config_;
  std::vector<Violation> violations_;
};

absl::Status Unreadable(const std::string& path, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("cannot read ", path, ": ", why, "; PHALANX_CONFIG names another file"));
}

absl::Status FileFaults(const std::string& path, const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) {
    absl::StrAppend(&text, path, ":");
    if (violation.line > 0) absl::StrAppend(&text, violation.line, ":");
    absl::StrAppend(&text, " ", ToString(violation), "\n");
  }
  return absl::FailedPreconditionError(
      absl::StrCat(text, "correct the file, or name another one with PHALANX_CONFIG"));
}

Tree TextOf(const std::string& text) { return job::ScalarTree(text, job::NeedsQuotes(text)); }

Tree TreeOf(const Config& config) {
  std::vector<Tree::Entry> contexts;
  for (const auto& [name, context] : config.contexts) {
    std::vector<Tree::Entry> settings;
    for (const auto& [field, value] : context) settings.push_back({field, TextOf(value.text)});
    contexts.push_back({name, job::MappingTree(std::move(settings))});
  }
  std::vector<Tree::Entry> entries;
  if (!config.current.text.empty()) entries.push_back({"current", TextOf(config.current.text)});
  entries.push_back({"contexts", job::MappingTree(std::move(contexts))});
  return job::MappingTree(std::move(entries));
}

// Where a value of the file is from: the person who reads it can go there.
std::string Place(const std::string& path, int32_t line) {
  return line > 0 ? absl::StrCat(path, ":", line) : path;
}

absl::Status NoContext(const std::string& path, const std::string& name, const Config& config) {
  std::vector<absl::string_view> names;
  for (const auto& [known, context] : config.contexts) names.push_back(known);
  std::string text = absl::StrCat(path.empty() ? "there is no config file, so no context"
                                               : absl::StrCat(path, " has no context"),
                                  " \"", LineText(CutText(name, kValueBytesShown)), "\"");
  if (const auto near = job::NearestName(name, names)) {
    absl::StrAppend(&text, "; did you mean ", *near, "?");
  } else if (!names.empty()) {
    absl::StrAppend(&text, "; phalanx config list shows those that there are");
  } else {
    absl::StrAppend(&text, "; phalanx config set NAME server=HOST:PORT makes one");
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace

absl::Span<const SettingField> SettingFields() {
  static constexpr SettingField kFields[] = {
      {"server", "--server", "PHALANX_SERVER", kDefaultServer, ServerFault},
      {"output", "-o", "PHALANX_OUTPUT", "table", OutputFault},
      {"timeout", "--timeout", "PHALANX_TIMEOUT", "5s; submit and rerun 30s, logs and list -w 1m",
       TimeoutFault},
      {"tls_ca", "--tls-ca", "PHALANX_TLS_CA", "", PathFault},
      {"tls_certificate", "--tls-certificate", "PHALANX_TLS_CERTIFICATE", "", PathFault},
      {"tls_key", "--tls-key", "PHALANX_TLS_KEY", "", PathFault},
      {"plaintext", "--plaintext", "PHALANX_PLAINTEXT", "", YesNoFault},
  };
  return kFields;
}

const SettingField* FindSettingField(absl::string_view name) {
  for (const SettingField& field : SettingFields()) {
    if (name == field.name) return &field;
  }
  return nullptr;
}

std::string SettingNames() {
  return absl::StrJoin(SettingFields(), ", ", [](std::string* out, const SettingField& field) {
    absl::StrAppend(out, field.name);
  });
}

std::string ContextNameFault(absl::string_view name) {
  const bool fits = !name.empty() && name.size() <= kNameBytesMax &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                             c == '_' || c == '.';
                    });
  return fits ? ""
              : absl::StrCat("a context has a name of at most ", kNameBytesMax,
                             " letters, digits, '-', '_' and '.'");
}

std::string ConfigPath(const Environment& environment) {
  const auto value = [&](const char* name) -> std::string {
    const char* text = environment(name);
    return text == nullptr ? "" : text;
  };
  if (std::string path = value("PHALANX_CONFIG"); !path.empty()) return path;
  if (std::string folder = value("XDG_CONFIG_HOME"); !folder.empty()) {
    return folder + "/phalanx/config.yaml";
  }
  const std::string home = value("HOME");
  return home.empty() ? "" : home + "/.config/phalanx/config.yaml";
}

absl::StatusOr<Config> ReadConfig(const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (path.empty() || type == fs::file_type::not_found) return Config();
  // Opening a pipe would wait for its other end. /dev/null is an empty file.
  if (type == fs::file_type::directory || type == fs::file_type::fifo) {
    return Unreadable(path, type == fs::file_type::fifo ? "is a pipe" : "is a folder");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Unreadable(path, std::strerror(errno));
  // One byte more than is allowed, so that the parser sees a file that is too long as such.
  std::string text(wire::kDocumentBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const absl::StatusOr<Tree> tree = wire::ParseYaml(text);
  if (!tree.ok()) return FileFaults(path, ViolationsOf(tree.status()));
  Reader reader;
  Config config = reader.Read(*tree);
  if (!reader.violations().empty()) return FileFaults(path, reader.violations());
  return config;
}

absl::StatusOr<UniqueFd> HoldConfig(const std::string& path) {
  if (path.empty()) return UniqueFd();
  UniqueFd folder(open(FolderOfFile(TargetOf(path)).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return folder;
  for (int tries = 0; tries < kHoldTries; ++tries) {
    if (flock(folder.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return folder;
    absl::SleepFor(kHoldPause);
  }
  return absl::UnavailableError(absl::StrCat(
      path, ": another command has been changing it for 5 s; end that one, or try again"));
}

absl::Status WriteConfig(const std::string& path, const Config& config) {
  if (path.empty()) {
    return absl::FailedPreconditionError(
        "there is no place for a config file; set HOME or PHALANX_CONFIG");
  }
  std::error_code error;
  const fs::path file = TargetOf(path), folder = FolderOfFile(file);
  if (!fs::exists(folder, error)) {
    fs::create_directories(folder.parent_path(), error);
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::UnavailableError(
          absl::StrCat("cannot make ", folder.string(), ": ", std::strerror(errno)));
    }
  }
  return WriteWholeFile(file.string(), wire::EmitYaml(TreeOf(config)), 0600);
}

const std::string& Settings::Of(absl::string_view name) const {
  return fields.at(std::string(name)).value;
}

absl::Duration Settings::Timeout(absl::Duration fallback) const {
  return job::ParseDuration(Of("timeout")).value_or(fallback);
}

transport::TlsFiles Settings::Tls() const {
  return {.ca = Of("tls_ca"), .certificate = Of("tls_certificate"), .key = Of("tls_key")};
}

absl::Status Settings::CheckServer() const {
  // A flag or a variable is its own name; in the file a field has one.
  const auto named = [this](const char* name) {
    const std::string& from = fields.at(name).from;
    const bool of_file = absl::StartsWith(from, path + ":");
    return of_file ? absl::StrCat(from, ": ", name) : from;
  };
  const bool plaintext = Of("plaintext") == "true";
  for (const char* file : {"tls_ca", "tls_certificate", "tls_key"}) {
    if (!plaintext || Of(file).empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(named("plaintext"), ": does not go with ",
                                                   named(file), "; leave one of them out"));
  }
  RETURN_IF_ERROR(transport::CheckPlaintextTo(Of("server"), named("server"), Tls(),
                                              plaintext ? named("plaintext") : ""));
  return CheckTlsFiles(Tls());
}

Format Settings::OutputFormat() const { return ParseFormat(Of("output")).value_or(Format::kTable); }

absl::StatusOr<Settings> ResolveSettings(const std::map<std::string, std::string>& flags,
                                         const Environment& environment) {
  Settings settings{.path = ConfigPath(environment)};
  const absl::StatusOr<Config> config = ReadConfig(settings.path);
  if (!config.ok()) return config.status();
  // What the command line or the environment says; empty: neither.
  const auto said = [&](const std::string& name, const char* named,
                        const char* variable) -> Setting {
    const auto flag = flags.find(name);
    if (flag != flags.end() && !flag->second.empty()) return {flag->second, named};
    const char* text = environment(variable);
    if (text != nullptr && *text != '\0') return {text, variable};
    return {};
  };
  settings.context = said("context", "--context", kContextVariable);
  if (settings.context.value.empty()) {
    settings.context = {config->current.text, config->current.text.empty()
                                                  ? "default"
                                                  : Place(settings.path, config->current.line)};
  }
  Context context;
  if (const std::string& name = settings.context.value; !name.empty()) {
    const auto found = config->contexts.find(name);
    if (found == config->contexts.end()) return NoContext(settings.path, name, *config);
    context = found->second;
  }
  for (const SettingField& field : SettingFields()) {
    Setting setting = said(field.name, field.flag, field.variable);
    if (setting.from == field.variable) {
      if (const std::string fault = field.fault(setting.value); !fault.empty()) {
        return ViolationsStatus({{.field = field.variable,
                                  .value = CutText(setting.value, kValueBytesShown),
                                  .rule = fault}});
      }
    }
    if (setting.value.empty()) {
      const auto found = context.find(field.name);
      setting = found == context.end()
                    ? Setting{"", "default"}
                    : Setting{found->second.text, Place(settings.path, found->second.line)};
    }
    settings.fields[field.name] = std::move(setting);
  }
  return settings;
}

}  // namespace phalanx::client
