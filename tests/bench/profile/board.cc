#include "tests/bench/profile/board.h"

#include <utility>
#include <vector>

#include "core/base/status.h"

namespace phalanx::bench {
namespace {

constexpr int kSmClock = 1, kGpuSensor = 0;  // NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
constexpr unsigned int kTextBytes = 96;      // NVML_DEVICE_NAME_V2_BUFFER_SIZE

}  // namespace

absl::StatusOr<std::unique_ptr<Board>> Board::Open() {
  const agent::GpuSelection selection = agent::GpusOfEnvironment(1);
  ASSIGN_OR_RETURN(std::unique_ptr<agent::Nvml> nvml, agent::Nvml::Open(selection.library));
  ASSIGN_OR_RETURN(const std::vector<Device> devices, nvml->DevicesOf(selection));
  std::unique_ptr<Board> board(new Board(std::move(nvml)));
  board->device_ = devices.front();
  const agent::Nvml& library = *board->nvml_;
  const bool complete = library.Find("nvmlDeviceGetTotalEnergyConsumption", board->energy_) &&
                        library.Find("nvmlDeviceGetClockInfo", board->clock_) &&
                        library.Find("nvmlDeviceGetTemperature", board->temperature_) &&
                        library.Find("nvmlDeviceGetEnforcedPowerLimit", board->limit_) &&
                        library.Find("nvmlSystemGetDriverVersion", board->driver_) &&
                        library.Find("nvmlDeviceGetName", board->name_);
  unsigned long long energy = 0;
  if (!complete || board->energy_(board->device_, &energy) != agent::Nvml::kSuccess)
    return absl::UnavailableError("this GPU or its driver counts no joules");
  return board;
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
