// client/config.h: the config file of the client, and where the settings of a command come from.
//
//   current: lab
//   contexts:
//     lab: {server: "10.0.0.5:4444", output: wide, timeout: 10s}
//
// A *context* is a named set of settings, most often one a cluster. A setting is taken from the
// first that has it: flag, environment, the chosen context, default. The chosen context is that of
// --context, of PHALANX_CONTEXT, or `current`.
//
// Thread-safe: functions of their arguments and of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/format.h"
#include "core/posix/unique_fd.h"
#include "transport/tls.h"

namespace phalanx::client {

inline constexpr size_t kContextsMax = 256;

// What a setting is called in the file, as a flag and in the environment.
struct SettingField {
  const char* name;
  const char* flag;
  const char* variable;  // of the environment
  // What holds where nobody says anything, as people read it; empty: nothing, and then the setting
  // is not shown.
  const char* fallback;
  // What is wrong with a value; empty: nothing.
  std::string (*fault)(const std::string& value);
};
// server, output, timeout, tls_ca, tls_certificate, tls_key, plaintext.
absl::Span<const SettingField> SettingFields();
// nullptr: there is none.
const SettingField* FindSettingField(absl::string_view name);
// "server, output, timeout, ...".
std::string SettingNames();
// What is wrong with the name of a context; empty: nothing.
std::string ContextNameFault(absl::string_view name);

struct ConfigValue {
  std::string text;
  int32_t line = 0;  // of the file, from 1; 0: not read from it
};
using Context = std::map<std::string, ConfigValue>;  // by SettingField::name
struct Config {
  ConfigValue current;  // empty: none is
  std::map<std::string, Context> contexts;
};

// The value of a variable of the environment; nullptr: not set.
using Environment = std::function<const char*(const char*)>;
// PHALANX_CONFIG, else $XDG_CONFIG_HOME/phalanx/config.yaml, else ~/.config/phalanx/config.yaml;
// empty where none of them is set.
std::string ConfigPath(const Environment& environment);

// A file that is not there, or no path, is an empty config. Errors: InvalidArgument, everything
// that is wrong with the file, a line each: "PATH:LINE: FIELD: VALUE: RULE"; Unavailable if it
// cannot be read.
absl::StatusOr<Config> ReadConfig(const std::string& path);
// The file is there whole or not at all, readable by its owner alone, and so is its folder where it
// has to be made. Comments that the file had are lost. Errors: Unavailable; FailedPrecondition if
// there is no path.
absl::Status WriteConfig(const std::string& path, const Config& config);
// Held from before the file is read until it is written, keeps other commands from changing it
// meanwhile. Nothing is held where the folder of the file is not there yet, or cannot be. Errors:
// Unavailable if another command holds it for 5 s.
absl::StatusOr<UniqueFd> HoldConfig(const std::string& path);

// A setting as it holds, and who says so.
struct Setting {
  std::string value;  // empty: the default
  std::string from;   // "--server", "-o", "PHALANX_SERVER", "PATH:LINE", "default"
};
struct Settings {
  std::string path;  // of the config file
  Setting context;   // value empty: none
  std::map<std::string, Setting> fields;

  const std::string& Of(absl::string_view name) const;
  // Of what is not said: `fallback`.
  absl::Duration Timeout(absl::Duration fallback) const;
  Format OutputFormat() const;
  transport::TlsFiles Tls() const;
  // Whether the server may be called: with TLS, or on loopback. Errors: InvalidArgument, naming the
  // setting as it was given, its value, the rule and what to do; also for plaintext beside
  // certificates.
  absl::Status CheckServer() const;
};
// `flags`: what the command line has, "context" among it; those without a value were not given, and
// the others are sound.
// Errors: InvalidArgument (a variable's value breaks its rule), FailedPrecondition (the context
// that is chosen is not in the file); those of ReadConfig.
absl::StatusOr<Settings> ResolveSettings(const std::map<std::string, std::string>& flags,
                                         const Environment& environment);

// Says what is wrong with the settings, and returns the exit code.
int FailSettings(const absl::Status& status, Io& io);

// `phalanx config ...`. Each returns the exit code.
int ConfigShow(const Settings& settings, Format format, Io& io);
int ConfigList(const std::string& path, Format format, Io& io);
int ConfigUse(const std::string& path, const std::string& context, Io& io);
// `settings`: NAME=VALUE; NAME= takes the setting out of the context. A context that is not there
// is made, and is the current one where there is none.
int ConfigSet(const std::string& path, const std::string& context,
              const std::vector<std::string>& settings, Io& io);
int ConfigDelete(const std::string& path, const std::string& context, Io& io);

}  // namespace phalanx::client
