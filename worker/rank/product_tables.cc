#include "worker/rank/product_tables.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/job/devices.h"
#include "core/job/failure.h"
#include "core/posix/file.h"
#include "core/schedule/device_kinds.h"
#include "worker/model/products.h"

namespace phalanx::rank {
namespace {

constexpr int64_t kTableBytesMax = int64_t{8} << 20;

absl::string_view Named() {
  const char* named = std::getenv(kProductsVariable);
  return named == nullptr ? absl::string_view() : absl::string_view(named);
}

// The text of the file that the variable names, which must be a table; "": it names none.
absl::StatusOr<std::string> TextOfFile() {
  const absl::string_view path = Named();
  if (path.empty() || path == job::kNoProducts) return "";
  absl::StatusOr<std::string> text = ReadWholeFile(std::string(path), kTableBytesMax);
  const absl::Status sound = text.ok() ? schedule::ReadProductTable(*text).status() : text.status();
  if (sound.ok()) return text;
  return absl::Status(sound.code(),
                      absl::StrCat(kProductsVariable, ": ", path, ": ", sound.message()));
}

// `own`: as TextOfFile.
std::vector<absl::string_view> Texts(const std::string& own) {
  std::vector<absl::string_view> texts;
  if (!own.empty()) texts.push_back(own);
  const absl::Span<const absl::string_view> built_in = schedule::BuiltInProductTables();
  texts.insert(texts.end(), built_in.begin(), built_in.end());
  return texts;
}

// What the plan of the last epoch named, which the next one does, too: behind a loss nothing is
// read again.
struct LastTable {
  Mutex mu;
  std::string reference ABSL_GUARDED_BY(mu);
  schedule::SharedProductTable table ABSL_GUARDED_BY(mu);
};

absl::StatusOr<schedule::SharedProductTable> TableOf(const std::string& reference) {
  static LastTable& last = *new LastTable;
  MutexLock lock(&last.mu);
  if (last.reference == reference) return last.table;
  ASSIGN_OR_RETURN(const std::string own, TextOfFile());
  schedule::SharedProductTable table = schedule::FindProductTable(Texts(own), reference);
  if (table == nullptr) return nullptr;
  last.reference = reference;
  return last.table = std::move(table);
}

absl::Status Mismatch(std::string message) {
  return job::WithKind(job::FailureKind::kVersionMismatch,
                       absl::FailedPreconditionError(std::move(message)));
}

}  // namespace

absl::StatusOr<std::string> ProductsOfDevice(const std::string& device_name) {
  if (Named() == job::kNoProducts) return job::kNoProducts;
  ASSIGN_OR_RETURN(const std::string own, TextOfFile());
  const schedule::SharedProductTable table = schedule::FindProductTable(
      Texts(own), schedule::KindOfDevice(device_name), model::ProductLibrary());
  return table == nullptr ? job::kNoProducts : schedule::ReferenceOf(*table);
}

absl::StatusOr<schedule::SharedProductTable> ProductsOfPlan(const std::string& reference,
                                                            int64_t library) {
  if (reference.empty()) return nullptr;
  ASSIGN_OR_RETURN(schedule::SharedProductTable table, TableOf(reference));
  if (table == nullptr) {
    return Mismatch(absl::StrCat("the plan takes algorithms of products from the table ", reference,
                                 ", which this rank's program does not have: its node said "
                                 "otherwise; start phalanx-worker there again"));
  }
  if (table->library != library) {
    return Mismatch(absl::StrCat("the plan takes algorithms of products from the table ", reference,
                                 ", and this rank's cuBLASLt is of version ", library,
                                 ": its node said otherwise; start phalanx-worker there again"));
  }
  return table;
}

int ProductsMain(const std::vector<std::string>& arguments) {
  const absl::StatusOr<std::string> products =
      arguments.size() == 1 ? ProductsOfDevice(arguments[0])
                            : absl::InvalidArgumentError("--products takes a device's name");
  if (!products.ok()) {
    std::fprintf(stderr, "%s\n", std::string(products.status().message()).c_str());
    return 1;
  }
  std::printf("products %s\n", products->c_str());
  return 0;
}

}  // namespace phalanx::rank
