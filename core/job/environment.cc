#include "core/job/environment.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/job/rules.h"

namespace phalanx::job {
namespace {

// Names that begin and end so; those that begin and end with all of a name are that one.
struct Refused {
  absl::string_view begin, end;
  absl::string_view why;
};
constexpr absl::string_view kCode = "it may choose what code ranks run";
constexpr absl::string_view kDevices = "a rank has the device that its node gives it";
constexpr absl::string_view kFiles =
    "it may choose what files are written; ranks write what they have to say to their log";
constexpr absl::string_view kPorts = "it may open a port that answers whoever asks";
constexpr Refused kRefused[] = {
    {"LD_", "", kCode},
    {"GLIBC_TUNABLES", "", kCode},
    {"GCONV_PATH", "", kCode},
    {"OPENSSL_", "", kCode},
    {"CUDA_INJECTION", "", kCode},
    {"NVTX_INJECTION", "", kCode},
    {"NCCL_", "_PLUGIN", kCode},
    {"NCCL_CONF_FILE", "", kCode},  // has variables of NCCL's, plug-ins among them
    {"IBV_DRIVERS", "", kCode},
    {"RDMAV_DRIVERS", "", kCode},
    {"UCX_MODULE_DIR", "", kCode},
    {"FI_PROVIDER_PATH", "", kCode},
    {"OMP_TOOL", "", kCode},
    {"NVSHMEM_", "_PLUGIN", kCode},
    {"INTEL_LIBITTNOTIFY", "", kCode},  // LibTorch loads what it names as it begins
    {"INTEL_JIT_PROFILER", "", kCode},  // and oneDNN within it, with its first kernel
    {"PATH", "PATH", kCode},            // of the programs that libraries begin
    {"TORCH_ADDR2LINE_BINARY", "", kCode},
    {"TORCH_SYMBOLIZE_MODE", "", kCode},  // one of them begins that program
    {"CUDA_VISIBLE_DEVICES", "", kDevices},
    {"CUDA_DEVICE_ORDER", "", kDevices},  // the node counts them in its own
    {"CUDA_MPS_", "", kDevices},          // shares one, and says through whom
    {"NVIDIA_", "", kDevices},
    {"NCCL_RAS_", "", kPorts},
    {"", "_DEBUG_FILE", kFiles},
    {"", "_DUMP_FILE", kFiles},
    {"", "_LOG_FILE", kFiles},
    {"", "_OUTPUT_FILE", kFiles},
    {"", "_LOGDEST_DBG", kFiles},
    {"", "_LOGPATH", kFiles},
    {"", "_JIT_DUMP", kFiles},
    {"", "_JIT_PROFILE", kFiles},
    {"JITDUMPDIR", "JITDUMPDIR", kFiles},
    {"", "_CACHE_DIR", kFiles},
    {"CUDA_COREDUMP", "", kFiles},
    {"CUDA_ENABLE_", "COREDUMP", kFiles},
    {"CUDA_ENABLE_", "COREDUMP_ON_EXCEPTION", kFiles},
    {"CUDA_CACHE_PATH", "", kFiles},
    {"PYTORCH_KERNEL_CACHE_PATH", "", kFiles},
    {"PYTORCH_TUNABLEOP_", "FILENAME", kFiles},
    {"KINETO_", "", kFiles},
    {"NVLOG_", "", kFiles},  // of CUPTI
    {"FBGEMM_STATS_", "", kFiles},
    {"LTC_SAVE_TENSORS_FILE", "", kFiles},
    {"TORCH_FR_DUMP_", "", kFiles},
    {"TORCH_NCCL_DEBUG_INFO_", "", kFiles},
    {"HOME", "HOME", kFiles},
    {"TMPDIR", "TMPDIR", kFiles},
    {"TMP", "TMP", kFiles},
    {"TEMP", "TEMP", kFiles},
    {"TEMPDIR", "TEMPDIR", kFiles},
    {"XDG_", "", kFiles},
    {"PHALANX_", "", "names that begin with PHALANX_ are Phalanx's own"},
};

// Libraries write their own variables to the log when they are asked to.
constexpr absl::string_view kToldByLibraries[] = {
    "CUDA_", "CUBLAS_", "GLOO_", "GOMP_", "KMP_", "MKL_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_"};

bool IsToldByLibraries(absl::string_view name) {
  return std::any_of(std::begin(kToldByLibraries), std::end(kToldByLibraries),
                     [name](absl::string_view begin) { return absl::StartsWith(name, begin); });
}

bool IsVariable(absl::string_view name) {
  return !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

bool IsText(absl::string_view value) {
  return std::none_of(value.begin(), value.end(),
                      [](unsigned char c) { return absl::ascii_iscntrl(c); });
}

// No folder, no hidden file, nothing that a path could hold.
bool IsFileName(absl::string_view name) {
  return !name.empty() && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace

std::optional<std::string> WhyNotVariable(absl::string_view name) {
  if (!IsVariable(name)) {
    return "the name of a variable has letters, digits and '_', and begins with no digit";
  }
  for (const Refused& refused : kRefused) {
    if (absl::StartsWith(name, refused.begin) && absl::EndsWith(name, refused.end))
      return absl::StrCat("a job may not set it: ", refused.why);
  }
  return std::nullopt;
}

std::optional<std::string> WhyNotSecret(absl::string_view name, absl::string_view file) {
  if (std::optional<std::string> why = WhyNotVariable(name)) return why;
  if (!IsFileName(file)) {
    return "must be the name of a file: letters, digits, '.', '_' and '-', not beginning with "
           "'.'; never the secret itself";
  }
  if (IsToldByLibraries(name))
    return "may not be a secret: libraries write variables of such names to logs";
  return std::nullopt;
}

void CheckEnvironment(const JobSpec& spec, Report& report) {
  for (const auto& [name, value] : spec.env) {
    const std::string path = JoinPath("spec.env", name);
    if (const auto why = WhyNotVariable(name)) {
      report.Add(path, *why);
    } else if (!IsText(value)) {
      report.Add(path, "must have no control characters");
    }
  }
  for (const auto& [name, file] : spec.secrets) {
    const std::string path = JoinPath("spec.secrets", name);
    if (const auto why = WhyNotSecret(name, file)) {
      report.Add(path, *why);
    } else if (spec.env.contains(name)) {
      report.Add(path, "is in env too");
    }
  }
}

}  // namespace phalanx::job
