// worker/model/torch_boundary.h: where LibTorch's exceptions end.
//
// LibTorch reports errors by throwing; the rest of the worker by absl::Status. Every entry point of
// this folder runs its body through CallTorch, so nothing leaves it as an exception.
#pragma once

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace phalanx::model {

// The Status of the exception that is being handled; only inside a catch clause.
absl::Status StatusOfCurrentException(absl::string_view what);

// Runs `body`, which returns void or absl::Status; what LibTorch throws becomes a Status that names
// `what`.
//   c10::OutOfMemoryError                        -> ResourceExhausted
//   c10::DistBackendError, c10::DistNetworkError -> Unavailable
//   c10::NotImplementedError                     -> Unimplemented
//   any other c10::Error, std::exception         -> Internal
// The message is what_without_backtrace(); the backtrace goes to the log.
template <typename Body>
absl::Status CallTorch(absl::string_view what, Body&& body) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      std::forward<Body>(body)();
      return absl::OkStatus();
    } else {
      return std::forward<Body>(body)();
    }
  } catch (...) {
    return StatusOfCurrentException(what);
  }
}

}  // namespace phalanx::model
