#include "core/wire/fault_codec.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace phalanx::wire {
namespace {

TEST(FaultCodecTest, Fault_ComesBackAsItWas) {
  for (int kind = 1; kind <= v1::FaultKind_MAX; ++kind) {
    const int phase = std::min<int>(kind, v1::FaultPhase_MAX);
    const job::InjectedFault fault{.kind = static_cast<job::FaultKind>(kind),
                                   .rank = 4,
                                   .at_step = int64_t{1} << 40,
                                   .phase = static_cast<job::FaultPhase>(phase),
                                   .xid = 79,
                                   .factor = 2.5,
                                   .duration = absl::Milliseconds(2'500)};
    EXPECT_FALSE(job::ToString(fault.kind).empty()) << kind;
    EXPECT_FALSE(job::ToString(fault.phase).empty()) << phase;
    v1::Fault message;
    ToProto(fault, &message);
    EXPECT_EQ(FromProto(message), fault);
  }
  v1::Fault message;
  ToProto({.kind = job::FaultKind::kKill}, &message);
  EXPECT_FALSE(message.has_duration());
}

TEST(FaultCodecTest, NumbersOfANewerVersion_StayUnknown) {
  for (const int number : {-5, 12, 256, 1 << 30}) {
    v1::Fault message;
    message.set_kind(static_cast<v1::FaultKind>(number));
    message.set_phase(static_cast<v1::FaultPhase>(number));
    const job::InjectedFault fault = FromProto(message);
    EXPECT_EQ(job::CheckFault(fault, job::kFaultMessage).size(), 2u) << number;
  }
}

}  // namespace
}  // namespace phalanx::wire
