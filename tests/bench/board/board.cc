#include "tests/bench/board/board.h"

#include <utility>

#include "core/base/status.h"

namespace phalanx::bench {
namespace {

constexpr int kSmClock = 1, kGpuSensor = 0;  // NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
constexpr unsigned int kTextBytes = 96;      // NVML_DEVICE_NAME_V2_BUFFER_SIZE

}  // namespace

absl::StatusOr<std::vector<Board>> Board::OpenAll(int32_t count) {
  const agent::GpuSelection selection = agent::GpusOfEnvironment(count);
  ASSIGN_OR_RETURN(std::unique_ptr<agent::Nvml> opened, agent::Nvml::Open(selection.library));
  const std::shared_ptr<agent::Nvml> nvml = std::move(opened);
  ASSIGN_OR_RETURN(const std::vector<Device> devices, nvml->DevicesOf(selection));
  std::vector<Board> boards;
  for (const Device device : devices) {
    Board board(nvml);
    board.device_ = device;
    const bool complete = nvml->Find("nvmlDeviceGetTotalEnergyConsumption", board.energy_) &&
                          nvml->Find("nvmlDeviceGetClockInfo", board.clock_) &&
                          nvml->Find("nvmlDeviceGetTemperature", board.temperature_) &&
                          nvml->Find("nvmlDeviceGetEnforcedPowerLimit", board.limit_) &&
                          nvml->Find("nvmlSystemGetDriverVersion", board.driver_) &&
                          nvml->Find("nvmlDeviceGetName", board.name_);
    unsigned long long energy = 0;
    if (!complete || board.energy_(device, &energy) != agent::Nvml::kSuccess)
      return absl::UnavailableError("this GPU or its driver counts no joules");
    boards.push_back(std::move(board));
  }
  return boards;
}

absl::StatusOr<std::unique_ptr<Board>> Board::Open(int32_t device) {
  ASSIGN_OR_RETURN(std::vector<Board> boards, OpenAll(device + 1));
  return std::make_unique<Board>(std::move(boards.back()));
}

double Board::Joules() const {
  unsigned long long millijoules = 0;
  energy_(device_, &millijoules);
  return 1e-3 * static_cast<double>(millijoules);
}

double Board::ClockMhz() const {
  unsigned int mhz = 0;
  clock_(device_, kSmClock, &mhz);
  return mhz;
}

double Board::TemperatureCelsius() const {
  unsigned int celsius = 0;
  temperature_(device_, kGpuSensor, &celsius);
  return celsius;
}

double Board::LimitWatts() const {
  unsigned int milliwatts = 0;
  limit_(device_, &milliwatts);
  return 1e-3 * milliwatts;
}

std::string Board::Driver() const {
  char text[kTextBytes] = "";
  driver_(text, sizeof(text));
  return text;
}

std::string Board::Name() const {
  char text[kTextBytes] = "";
  name_(device_, text, sizeof(text));
  return text;
}

}  // namespace phalanx::bench
