// A library with the part of NVML's interface that worker/agent/nvml.h and nvml_events.cc ask: the
// GPUs are those of FAKE_NVML_GIB, "80 80 24" being three, with so many GiB and one of them the
// driver's, and 2 (i + 1) of GPU i in use. GPU i has the UUID "GPU-i". "none": no driver.
//
// FAKE_NVML_CAPABILITY is the compute capability of the last of them, "8.6"; the others have 9.0.
//
// FAKE_NVML_NAME is the name of the last of them; the others are called "NVIDIA H200".
//
// FAKE_NVML_XIDS is what waits for events find, one after the other, if the GPU is registered:
// "1:79 0:31". "lost:1": that the second GPU is lost, which it says for ever.
//
// FAKE_NVML_HANGS names a file: while it is there who waits for events waits for ever.
//
// FAKE_NVML_ACTION is what all are to have done with them, as NVML numbers it; not set: it does not
// say.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>
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

std::set<const void*> registered;
std::atomic<const void*> lost = nullptr;
[[maybe_unused]] size_t events_told = 0;

[[maybe_unused]] void* DeviceOf(size_t index) { return reinterpret_cast<void*>(index + 1); }

struct Event {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

struct Field {
  unsigned int field, scope;
  long long timestamp, latency;
  int type, result;
  unsigned long long value;
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
  if (device == lost) return 15;
  *info = {.total = SizeOf(device), .free = 0, .used = 0};
  return 0;
}
#ifdef FAKE_NVML_2
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  const char* last = std::getenv("FAKE_NVML_CAPABILITY");
  const bool is_last = device == DeviceOf(Sizes().size() - 1);
  return std::sscanf(last != nullptr && is_last ? last : "9.0", "%d.%d", major, minor) == 2 ? 0 : 2;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned int* degrees) {
  *degrees = 40 + static_cast<unsigned int>(reinterpret_cast<size_t>(device));
  return sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetName(void* device, char* name, unsigned int size) {
  const char* last = std::getenv("FAKE_NVML_NAME");
  const bool is_last = device == DeviceOf(Sizes().size() - 1);
  std::snprintf(name, size, "%s", last != nullptr && is_last ? last : "NVIDIA H200");
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned int size) {
  std::snprintf(uuid, size, "GPU-%zu", reinterpret_cast<size_t>(device) - 1);
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = &registered;
  registered.clear();
  events_told = 0;
  lost = nullptr;
  return 0;
}
int nvmlEventSetFree(void*) { return 0; }
int nvmlDeviceGetFieldValues(void*, int count, Field* values) {
  const char* action = std::getenv("FAKE_NVML_ACTION");
  for (int i = 0; i < count; ++i) {
    const bool told = action != nullptr && values[i].field == 230;
    values[i].type = 1;  // an unsigned int
    values[i].result = told ? 0 : 3;
    values[i].value = told ? std::stoul(action) : 0;
  }
  return 0;
}
int nvmlDeviceRegisterEvents(void* device, unsigned long long, void*) {
  registered.insert(device);
  return 0;
}
int nvmlEventSetWait_v2(void*, Event* event, unsigned int milliseconds) {
  const char* hangs = std::getenv("FAKE_NVML_HANGS");
  while (hangs != nullptr && access(hangs, F_OK) == 0) poll(nullptr, 0, 1);
  const char* script = std::getenv("FAKE_NVML_XIDS");
  std::istringstream text(script == nullptr ? "" : script);
  std::string word;
  for (size_t i = 0; text >> word; ++i) {
    if (i < events_told) continue;
    ++events_told;
    const size_t colon = word.find(':');
    const size_t second = std::stoul(word.substr(colon + 1));
    if (word.substr(0, colon) == "lost") {
      lost = DeviceOf(second);
      return 15;
    }
    *event = {DeviceOf(std::stoul(word.substr(0, colon))), 8, second, 0, 0};
    if (registered.contains(event->device)) return 0;
  }
  poll(nullptr, 0, static_cast<int>(milliseconds));
  return 10;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, Info2* info) {
  if (info->version != (sizeof(Info2) | 2U << 24)) return 25;
  info->total = SizeOf(device);
  info->reserved = kGib;
  info->used = 2 * kGib * reinterpret_cast<size_t>(device);
  return 0;
}
#endif

}  // extern "C"
#pragma GCC visibility pop
