#include "worker/agent/products.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/cut_text.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/job/devices.h"
#include "core/schedule/device_kinds.h"
#include "core/schedule/product_table.h"
#include "worker/agent/spawn.h"

namespace phalanx::agent {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(60);
constexpr size_t kAnswerBytesMax = 16 << 10, kWordsMax = 300;

// Empty: not all of one kind that is known.
std::string KindOfAll(const std::vector<std::string>& device_names) {
  const std::string kind(device_names.empty() ? "" : schedule::KindOfDevice(device_names.front()));
  const bool alike =
      std::all_of(device_names.begin(), device_names.end(),
                  [&](const std::string& name) { return schedule::KindOfDevice(name) == kind; });
  return alike ? kind : "";
}

// All that it prints until it ends.
absl::StatusOr<std::string> ReadToEnd(int fd, absl::Duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  std::string text;
  while (true) {
    pollfd ready{fd, POLLIN, 0};
    const int64_t left =
        absl::ToInt64Milliseconds(absl::FromChrono(deadline - std::chrono::steady_clock::now()));
    if (left <= 0) return absl::DeadlineExceededError("it does not answer");
    if (poll(&ready, 1, static_cast<int>(left)) <= 0) continue;
    char bytes[4096];
    const ssize_t n = read(fd, bytes, sizeof(bytes));
    if (n == 0) return text;
    if (n < 0 && errno != EINTR && errno != EAGAIN) return text;
    if (n > 0)
      text.append(bytes, std::min<size_t>(static_cast<size_t>(n), kAnswerBytesMax - text.size()));
  }
}

}  // namespace

absl::StatusOr<std::string> ProductsOfRanks(const std::string& rank_program,
                                            const std::vector<std::string>& device_names) {
  const std::string kind = KindOfAll(device_names);
  const char* named = std::getenv("PHALANX_PRODUCTS");
  const absl::string_view file = named == nullptr ? "" : named;
  if (kind.empty() || file == job::kNoProducts) return "";
  if (file.empty() && !schedule::HasProductTable(schedule::BuiltInProductTables(), kind)) return "";
  ASSIGN_OR_RETURN(Spawned spawned,
                   SpawnRank(rank_program, {}, {"--products", device_names.front()}));
  const absl::StatusOr<std::string> text = ReadToEnd(spawned.output.get(), kAnswerTimeout);
  kill(-spawned.pid, SIGKILL);
  while (waitpid(spawned.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  RETURN_IF_ERROR(text.status());
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (absl::ConsumePrefix(&line, "products ")) return std::string(line);
  }
  return absl::InternalError(
      absl::StrCat(rank_program, " --products: ", TerminalText(CutText(*text, kWordsMax))));
}

}  // namespace phalanx::agent
