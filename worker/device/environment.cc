#include "worker/device/environment.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace phalanx::device {

std::string SetCudaEnvironment() {
  constexpr struct {
    const char *name, *value;
  } kVariables[] = {{"CUDA_MODULE_LOADING", "EAGER"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};
  std::string holds;
  for (const auto& [name, value] : kVariables) {
    setenv(name, value, /*overwrite=*/0);
    absl::StrAppend(&holds, holds.empty() ? "" : " ", name, "=", std::getenv(name));
  }
  return holds;
}

}  // namespace phalanx::device
