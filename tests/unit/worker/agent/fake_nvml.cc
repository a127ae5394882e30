// A library with the part of NVML's interface that worker/agent/device_memory.h asks: the GPUs are
// those of FAKE_NVML_GIB, "80 80 24" being three, with so many GiB and one of them the driver's.
// GPU i has the UUID "GPU-i". "none": no driver.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr unsigned long long kGib = 1ULL << 30;
int initialised = 0;

std::vector<unsigned long long> Sizes() {
  std::istringstream text(std::getenv("FAKE_NVML_GIB"));
  std::vector<unsigned long long> sizes;
  for (unsigned long long size = 0; text >> size;) sizes.push_back(size);
  return sizes;
}

struct Info {
  unsigned long long total, free, used;
};
struct Info2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};

unsigned long long SizeOf(const void* device) {
  return Sizes()[reinterpret_cast<size_t>(device) - 1] * kGib;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() {
  if (std::getenv("FAKE_NVML_GIB") == std::string("none")) return 9;
  ++initialised;
  return 0;
}
int nvmlShutdown() { return --initialised == 0 ? 0 : 1; }
const char* nvmlErrorString(int result) {
  return result == 9 ? "Driver Not Loaded" : "Invalid Argument";
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(Sizes().size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= Sizes().size()) return 2;
  *device = reinterpret_cast<void*>(size_t{index} + 1);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::string(uuid, 4) != "GPU-") return 2;
  return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned int>(std::stoul(uuid + 4)), device);
}
int nvmlDeviceGetMemoryInfo(void* device, Info* info) {
  *info = {.total = SizeOf(device), .free = 0, .used = 0};
  return 0;
}
#ifdef FAKE_NVML_2
int nvmlDeviceGetMemoryInfo_v2(void* device, Info2* info) {
  if (info->version != (sizeof(Info2) | 2U << 24)) return 25;
  info->total = SizeOf(device);
  info->reserved = kGib;
  return 0;
}
#endif

}  // extern "C"
#pragma GCC visibility pop
