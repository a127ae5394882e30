#include "worker/agent/nvml.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"

namespace phalanx::agent {
namespace {

// nullopt: `name` is a UUID.
std::optional<uint32_t> IndexOf(const std::string& name) {
  uint32_t index = 0;
  return absl::SimpleAtoi(name, &index) ? std::optional(index) : std::nullopt;
}

// What NVML calls the devices, in our order.
absl::StatusOr<std::vector<std::string>> NamesOf(const GpuSelection& selection) {
  if (std::optional<std::vector<std::string>> visible = selection.VisibleNames()) {
    if (visible->size() < static_cast<size_t>(selection.devices)) {
      return absl::NotFoundError(absl::StrCat("CUDA_VISIBLE_DEVICES names ", visible->size(),
                                              " GPUs; --devices is ", selection.devices));
    }
    visible->resize(static_cast<size_t>(selection.devices));
    return *std::move(visible);
  }
  std::vector<std::string> names;
  for (int32_t device = 0; device < selection.devices; ++device) {
    names.push_back(absl::StrCat(device));
  }
  return names;
}

}  // namespace

std::optional<std::vector<std::string>> GpuSelection::VisibleNames() const {
  if (!visible.has_value()) return std::nullopt;
  std::vector<std::string> names;
  for (absl::string_view name : absl::StrSplit(*visible, ',', absl::SkipWhitespace()))
    names.emplace_back(absl::StripAsciiWhitespace(name));
  return names;
}

GpuSelection GpusOfEnvironment(int32_t devices) {
  GpuSelection selection{.devices = devices};
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) selection.visible = visible;
  const char* order = std::getenv("CUDA_DEVICE_ORDER");
  selection.bus_order = order != nullptr && absl::string_view(order) == "PCI_BUS_ID";
  return selection;
}

void Nvml::Close::operator()(void* library) const { dlclose(library); }

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& library) {
  std::unique_ptr<Nvml> nvml(new Nvml);
  nvml->library_.reset(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (nvml->library_ == nullptr) return absl::UnavailableError(dlerror());
  const bool complete = nvml->Find("nvmlInit_v2", nvml->init_) &&
                        nvml->Find("nvmlShutdown", nvml->shutdown_) &&
                        nvml->Find("nvmlErrorString", nvml->error_string_) &&
                        nvml->Find("nvmlDeviceGetCount_v2", nvml->count_) &&
                        nvml->Find("nvmlDeviceGetHandleByIndex_v2", nvml->by_index_) &&
                        nvml->Find("nvmlDeviceGetHandleByUUID", nvml->by_uuid_) &&
                        nvml->Find("nvmlDeviceGetMemoryInfo", nvml->memory_);
  nvml->Find("nvmlDeviceGetMemoryInfo_v2", nvml->memory2_);  // since driver 510
  nvml->Find("nvmlDeviceGetCudaComputeCapability", nvml->capability_);
  nvml->Find("nvmlDeviceGetTemperature", nvml->temperature_);
  nvml->Find("nvmlDeviceGetName", nvml->name_);
  if (!complete) return absl::UnavailableError(absl::StrCat(library, " is not NVML"));
  RETURN_IF_ERROR(nvml->StatusOf(nvml->init_(), absl::StatusCode::kUnavailable, "nvmlInit"));
  nvml->initialised_ = true;
  return nvml;
}

Nvml::~Nvml() {
  if (initialised_) shutdown_();
}

void* Nvml::Symbol(const char* name) const { return dlsym(library_.get(), name); }

absl::Status Nvml::StatusOf(int result, absl::StatusCode code, absl::string_view what) const {
  if (result == kSuccess) return absl::OkStatus();
  return absl::Status(code, absl::StrCat(what, ": ", error_string_(result)));
}

absl::StatusOr<Nvml::Device> Nvml::DeviceNamed(const std::string& name) const {
  Device device = nullptr;
  const std::optional<uint32_t> index = IndexOf(name);
  const int found = index.has_value() ? by_index_(*index, &device)  //
                                      : by_uuid_(name.c_str(), &device);
  RETURN_IF_ERROR(StatusOf(found, absl::StatusCode::kNotFound, absl::StrCat("GPU ", name)));
  return device;
}

absl::StatusOr<int64_t> Nvml::MemoryOf(Device device) const {
  MemoryInfo2 info2{};
  info2.version = sizeof(MemoryInfo2) | (2U << 24);
  if (memory2_ != nullptr && memory2_(device, &info2) == kSuccess) {
    return static_cast<int64_t>(info2.total - info2.reserved);
  }
  MemoryInfo info{};
  RETURN_IF_ERROR(
      StatusOf(memory_(device, &info), absl::StatusCode::kUnavailable, "memory of a GPU"));
  return static_cast<int64_t>(info.total);
}

absl::StatusOr<int64_t> Nvml::UsedMemoryOf(Device device) const {
  MemoryInfo2 info2{};
  info2.version = sizeof(MemoryInfo2) | (2U << 24);
  if (memory2_ != nullptr && memory2_(device, &info2) == kSuccess)
    return static_cast<int64_t>(info2.used);
  MemoryInfo info{};
  RETURN_IF_ERROR(
      StatusOf(memory_(device, &info), absl::StatusCode::kUnavailable, "memory of a GPU"));
  return static_cast<int64_t>(info.used);
}

absl::StatusOr<int32_t> Nvml::ComputeCapabilityOf(Device device) const {
  if (capability_ == nullptr)
    return absl::UnavailableError("this driver knows no compute capability");
  int major = 0, minor = 0;
  RETURN_IF_ERROR(StatusOf(capability_(device, &major, &minor), absl::StatusCode::kUnavailable,
                           "compute capability of a GPU"));
  return 10 * major + minor;
}

absl::StatusOr<std::string> Nvml::NameOf(Device device) const {
  if (name_ == nullptr) return absl::UnavailableError("this driver knows no names of GPUs");
  char text[96] = {};
  RETURN_IF_ERROR(StatusOf(name_(device, text, sizeof(text) - 1), absl::StatusCode::kUnavailable,
                           "name of a GPU"));
  std::string name = text;
  std::erase_if(name, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
  return name;
}

absl::StatusOr<int32_t> Nvml::TemperatureOf(Device device) const {
  constexpr int kOfTheGpu = 0;
  if (temperature_ == nullptr) return absl::UnavailableError("this driver knows no temperature");
  unsigned int degrees = 0;
  RETURN_IF_ERROR(StatusOf(temperature_(device, kOfTheGpu, &degrees),
                           absl::StatusCode::kUnavailable, "temperature of a GPU"));
  return static_cast<int32_t>(degrees);
}

bool Nvml::IsLost(Device device) const {
  MemoryInfo info{};
  return memory_(device, &info) == kGpuIsLost;
}

absl::StatusOr<bool> Nvml::Alike() const {
  unsigned int count = 0;
  RETURN_IF_ERROR(StatusOf(count_(&count), absl::StatusCode::kUnavailable, "number of GPUs"));
  std::set<int64_t> sizes;
  for (unsigned int index = 0; index < count; ++index) {
    ASSIGN_OR_RETURN(const Device device, DeviceNamed(absl::StrCat(index)));
    ASSIGN_OR_RETURN(const int64_t bytes, MemoryOf(device));
    sizes.insert(bytes);
  }
  return sizes.size() <= 1;
}

absl::StatusOr<std::vector<Nvml::Device>> Nvml::DevicesOf(const GpuSelection& selection) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(selection));
  std::vector<Device> devices;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const Device device, DeviceNamed(name));
    devices.push_back(device);
  }
  if (names.empty() || selection.bus_order || !IndexOf(names.front()).has_value()) return devices;
  ASSIGN_OR_RETURN(const bool alike, Alike());
  if (!alike) {
    return absl::FailedPreconditionError(
        "the GPUs have unequal memory: set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that they are numbered "
        "as on the bus");
  }
  return devices;
}

}  // namespace phalanx::agent
