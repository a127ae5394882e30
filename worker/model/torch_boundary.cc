#include "worker/model/torch_boundary.h"

#include <c10/util/Exception.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "core/job/failure.h"

namespace phalanx::model {
namespace {

absl::Status Describe(absl::StatusCode code, absl::string_view what, const c10::Error& error) {
  spdlog::error("{}: {}", std::string(what), error.what());
  return absl::Status(code, absl::StrCat(what, ": ", error.what_without_backtrace()));
}

}  // namespace

absl::Status StatusOfCurrentException(absl::string_view what) {
  // More derived types first.
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return job::WithKind(job::FailureKind::kOutOfMemory,
                         Describe(absl::StatusCode::kResourceExhausted, what, error));
  } catch (const c10::DistBackendError& error) {
    return Describe(absl::StatusCode::kUnavailable, what, error);
  } catch (const c10::DistNetworkError& error) {
    return Describe(absl::StatusCode::kUnavailable, what, error);
  } catch (const c10::NotImplementedError& error) {
    return Describe(absl::StatusCode::kUnimplemented, what, error);
  } catch (const c10::AcceleratorError& error) {
    return job::WithKind(job::FailureKind::kDeviceFailed,
                         Describe(absl::StatusCode::kInternal, what, error));
  } catch (const c10::Error& error) {
    return Describe(absl::StatusCode::kInternal, what, error);
  } catch (const std::bad_alloc&) {
    return job::WithKind(job::FailureKind::kOutOfMemory,
                         absl::ResourceExhaustedError(absl::StrCat(what, ": out of host memory")));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat(what, ": unknown exception"));
  }
}

}  // namespace phalanx::model
