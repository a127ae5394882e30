// phalanx-bench-products --job JOB.yaml [--job ...] --out FILE [--before FILE] [--seconds N]
// [--seconds-each N]: a table of algorithms of products (core/schedule/product_table.h) for the
// first GPU of this machine and its cuBLASLt.
//
// Each job is trained for a few steps without a table, which says what products its ranks compute;
// then these are measured, most work first, for N seconds (300) together at most, of which each
// measure takes N (0.6). What --before has of the same device and library, and is not measured,
// stays. PHALANX_PRODUCTS=FILE trains with the table that is written. Nothing else may use the
// board. Exits with 0 where there is no GPU to be measured.
#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/posix/file.h"
#include "core/posix/whole_file.h"
#include "core/schedule/device_kinds.h"
#include "tests/bench/board/board.h"
#include "tests/bench/products/measure.h"
#include "tests/bench/products/met.h"
#include "worker/device/cuda_device.h"
#include "worker/model/products.h"

namespace phalanx::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSecondsMin = 10, kSecondsMax = 36'000, kEachMin = 0.2, kEachMax = 30;
// What does not come to this share of a job's work is not worth a second.
constexpr double kShareMin = 5e-4;
constexpr int64_t kTableBytesMax = int64_t{8} << 20;

struct Options {
  std::vector<std::string> jobs;
  std::string out, before;
  double seconds = 300, each = 0.6;
};

// Neither infinite nor no number at all.
bool ParseSeconds(const std::string& text, double low, double high, double* seconds) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value) || value < low || value > high)
    return false;
  *seconds = value;
  return true;
}

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const absl::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--job") {
      options.jobs.push_back(value);
    } else if (flag == "--out") {
      options.out = value;
    } else if (flag == "--before") {
      options.before = value;
    } else if (flag == "--seconds") {
      if (!ParseSeconds(value, kSecondsMin, kSecondsMax, &options.seconds)) return false;
    } else if (flag != "--seconds-each" ||
               !ParseSeconds(value, kEachMin, kEachMax, &options.each)) {
      return false;
    }
  }
  return argc % 2 == 1 && !options.jobs.empty() && !options.out.empty();
}

// What is worth measuring of all jobs.
absl::StatusOr<std::vector<Weighted>> ProductsOf(const std::vector<std::string>& jobs) {
  std::vector<std::vector<Weighted>> of_jobs;
  for (const std::string& job : jobs) {
    std::fprintf(stderr, "which products has %s: a few steps of it\n", job.c_str());
    ASSIGN_OR_RETURN(std::vector<Weighted> products, ProductsOfJob(job));
    double all = 0;
    for (const Weighted& product : products) all += product.flops();
    std::erase_if(products,
                  [&](const Weighted& product) { return product.flops() < kShareMin * all; });
    of_jobs.push_back(std::move(products));
  }
  return Merged(of_jobs);
}

absl::StatusOr<schedule::ProductTable> EmptyTable(const Board& board, const Options& options) {
  schedule::ProductTable table{.kind = std::string(schedule::KindOfDevice(board.Name())),
                               .library = model::ProductLibrary(),
                               .device = board.Name(),
                               .driver = board.Driver(),
                               .power_limit_watts = board.LimitWatts()};
  table.source = absl::StrFormat(
      "phalanx-bench products --seconds-each %g: each algorithm without pauses, of random values",
      options.each);
  if (table.kind.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(board.Name(), " is of no kind that core/schedule/device_kinds.cc knows"));
  }
  if (table.library <= 0) return absl::UnimplementedError("no cuBLASLt here");
  return table;
}

// Entries of before that are not of `measured`.
absl::Status KeepBefore(const std::string& path, const std::set<schedule::ProductKey>& measured,
                        schedule::ProductTable& table) {
  if (path.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kTableBytesMax));
  ASSIGN_OR_RETURN(const schedule::ProductTable before, schedule::ReadProductTable(text));
  if (before.device != table.device || before.library != table.library) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is of ", before.device,
                                                      " and cuBLASLt ", before.library, ", not of ",
                                                      table.device, " and ", table.library));
  }
  for (const schedule::ProductEntry& entry : before.entries) {
    if (!measured.contains(entry.key)) table.entries.push_back(entry);
  }
  return absl::OkStatus();
}

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Until the time is over; at least one.
std::set<schedule::ProductKey> MeasureAll(const std::vector<Weighted>& products, Meter& meter,
                                          const Options& options, schedule::ProductTable& table) {
  std::set<schedule::ProductKey> measured;
  double all = 0, before = 0, after = 0;
  const auto begin = Clock::now();
  for (const Weighted& product : products) {
    const double taken = Since(begin), of_one = taken / std::max<size_t>(1, measured.size());
    if (!measured.empty() && taken + of_one > options.seconds) break;
    const Measured one = MeasureProduct(meter, product.key);
    at::getDeviceAllocator(at::kCUDA)->emptyCache();
    const auto entry = EntryOf(one, table.power_limit_watts);
    if (entry.has_value()) table.entries.push_back(*entry);
    measured.insert(product.key);
    const auto weight = static_cast<double>(product.count);
    const double was = schedule::ProductCostOf(one.before, table.power_limit_watts);
    before += weight * was;
    after +=
        weight *
        (entry.has_value() ? schedule::ProductCostOf(entry->cost, table.power_limit_watts) : was);
    const double left = std::min(options.seconds - Since(begin),
                                 Since(begin) / static_cast<double>(measured.size()) *
                                     static_cast<double>(products.size() - measured.size()));
    std::fprintf(stderr, "[%zu/%zu, %.0f s left] %s: %s\n", measured.size(), products.size(),
                 std::max(0.0, left), schedule::ToString(product.key).c_str(),
                 LineOf(one, entry, table.power_limit_watts).c_str());
  }
  for (const Weighted& product : products) all += product.flops();
  double done = 0;
  for (const Weighted& product : products)
    done += measured.contains(product.key) ? product.flops() : 0;
  std::fprintf(stderr,
               "%zu of %zu products, %.1f %% of the work; all of them by the table cost "
               "%.2f %% of what they do without\n",
               measured.size(), products.size(), 100 * done / all, 100 * after / before);
  return measured;
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<Weighted> products, ProductsOf(options.jobs));
  RETURN_IF_ERROR(device::UseCudaDevice(0));
  ASSIGN_OR_RETURN(const std::unique_ptr<Board> board, Board::Open(0));
  ASSIGN_OR_RETURN(schedule::ProductTable table, EmptyTable(*board, options));
  RETURN_IF_ERROR(KeepBefore(options.before, {}, table));  // before minutes are spent
  table.entries.clear();
  Meter meter(*board, options.each);
  const std::set<schedule::ProductKey> measured = MeasureAll(products, meter, options, table);
  RETURN_IF_ERROR(KeepBefore(options.before, measured, table));
  if (table.entries.empty()) {
    std::printf("no algorithm is better than what there is without a table: nothing is written\n");
    return absl::OkStatus();
  }
  const std::string text = schedule::WriteProductTable(table);
  RETURN_IF_ERROR(schedule::ReadProductTable(text).status());  // measured nonsense is not written
  RETURN_IF_ERROR(WriteWholeFile(options.out, text));
  std::printf("%s: %s, %zu entries, at most %.0f degrees\n", options.out.c_str(),
              schedule::ReferenceOf(table).c_str(), table.entries.size(), meter.hottest_celsius());
  return absl::OkStatus();
}

int Fail(absl::string_view message) {
  std::fprintf(stderr, "phalanx-bench products: %s\n", std::string(message).c_str());
  return 1;
}

}  // namespace
}  // namespace phalanx::bench

int main(int argc, char** argv) {
  using namespace phalanx;  // NOLINT(google-build-using-namespace)
  bench::Options options;
  if (!bench::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: phalanx-bench products --job JOB.yaml [--job ...] --out FILE "
                 "[--before FILE] [--seconds N] [--seconds-each N]\n"
                 "seconds: from %.0f to %.0f, default 300; of each measure from %.1f to %.0f, "
                 "default 0.6\n",
                 bench::kSecondsMin, bench::kSecondsMax, bench::kEachMin, bench::kEachMax);
    return 2;
  }
  // Ranks take the GPU first: this process does not touch it.
  if (const absl::Status board = bench::Board::Open(0).status(); !board.ok()) {
    std::printf("no GPU here: %s\n", std::string(board.message()).c_str());
    return 0;
  }
  try {
    const absl::Status run = bench::Run(options);
    return run.ok() ? 0 : bench::Fail(run.message());
  } catch (const std::exception& error) {
    return bench::Fail(error.what());
  }
}
