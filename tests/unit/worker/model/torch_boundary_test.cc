#include "worker/model/torch_boundary.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/job/failure.h"

namespace phalanx::model {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CallTorchTest, BodyWithoutResult_IsOk) {
  bool ran = false;
  EXPECT_TRUE(CallTorch("a pass", [&] { ran = true; }).ok());
  EXPECT_TRUE(ran);
}

TEST(CallTorchTest, BodyWithStatus_PassesItOn) {
  const absl::Status status = CallTorch("a pass", [] { return absl::AbortedError("superseded"); });
  EXPECT_EQ(status, absl::AbortedError("superseded"));
}

TEST(CallTorchTest, TorchError_BecomesInternalWithoutBacktrace) {
  const absl::Status status = CallTorch("forward", [] { TORCH_CHECK(false, "shapes differ"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("forward: shapes differ"));
  EXPECT_THAT(status.message(), Not(HasSubstr("frame #")));
}

TEST(CallTorchTest, DerivedErrors_HaveCodesOfTheirOwn) {
  const auto code = [](auto&& body) { return CallTorch("x", body).code(); };
  EXPECT_EQ(code([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "full"); }),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code([] { C10_THROW_ERROR(DistBackendError, "peer"); }),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(code([] { C10_THROW_ERROR(DistNetworkError, "peer"); }),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(code([] { TORCH_CHECK_NOT_IMPLEMENTED(false, "no kernel"); }),
            absl::StatusCode::kUnimplemented);
}

TEST(CallTorchTest, ErrorOfADevice_IsTheDevicesFailure) {
  const absl::Status status = CallTorch("x", [] {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 719, "unspecified launch failure");
  });
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kDeviceFailed);
}

TEST(CallTorchTest, FullMemory_OfDeviceOrHost_IsOutOfMemory) {
  for (const absl::Status& status :
       {CallTorch("x", [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "full"); }),
        CallTorch("x", [] { throw std::bad_alloc(); })}) {
    EXPECT_EQ(job::KindOf(status), job::FailureKind::kOutOfMemory) << status;
  }
}

TEST(CallTorchTest, OtherExceptions_AreCaught) {
  EXPECT_EQ(CallTorch("x", [] { throw std::runtime_error("why"); }), absl::InternalError("x: why"));
  EXPECT_EQ(CallTorch("x", [] { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CallTorch("x", [] { throw 7; }).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace phalanx::model
