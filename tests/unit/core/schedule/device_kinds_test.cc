#include "core/schedule/device_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace phalanx::schedule {
namespace {

using ::testing::IsEmpty;

TEST(DeviceKindsTest, KindOfDevice_IsThatOfTheWholeName) {
  EXPECT_EQ(KindOfDevice("NVIDIA H200"), "h200");
  EXPECT_EQ(KindOfDevice("NVIDIA H100 80GB HBM3"), "h100");
  for (const char* name : {"", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h200"})
    EXPECT_EQ(KindOfDevice(name), "") << name;
}

TEST(DeviceKindsTest, CostsOfDevices_OfOneKind_AreThoseOfItsProfile) {
  const DeviceCosts costs = CostsOfDevices({"NVIDIA H200"});
  EXPECT_EQ(costs.profile.name, "h200");
  EXPECT_THAT(costs.why_nominal, IsEmpty());
}

TEST(DeviceKindsTest, CostsOfDevices_OfNoKnownKind_AreNominalAndSayWhy) {
  const auto why = [](const std::set<std::string>& names) {
    const DeviceCosts costs = CostsOfDevices(names);
    EXPECT_EQ(costs.profile.name, kNominalDevice);
    return costs.why_nominal;
  };
  EXPECT_EQ(why({}), "no node that the job may use is connected");
  EXPECT_EQ(why({""}), "nodes do not name their devices");
  EXPECT_EQ(why({"NVIDIA L40S"}), "no profile of NVIDIA L40S");
  EXPECT_EQ(why({"NVIDIA H200", "NVIDIA L40S"}), "devices are not alike: NVIDIA H200, NVIDIA L40S");
  EXPECT_EQ(why({"", "NVIDIA H200"}), "devices are not alike: one without a name, NVIDIA H200");
  EXPECT_EQ(why({"a", "b", "c", "d", "e"}), "devices are not alike: a, b, c and 2 more");
}

TEST(DeviceKindsTest, WhatProcessesTake_IsThatOfTheProfiles) {
  const DeviceProfile h200 = *FindProfile("h200");
  ASSERT_GT(h200.unestimated_bytes, 0);
  for (const std::set<std::string>& names :
       {std::set<std::string>{"NVIDIA H200"}, {"NVIDIA H200", "NVIDIA L40S"}}) {
    const BytesBeside beside = BesideOfDevices(names);
    EXPECT_EQ(beside.least, h200.unestimated_bytes);
    ASSERT_TRUE(beside.process.has_value());
    EXPECT_EQ(beside.process->context, h200.process->context);
  }
  for (const std::set<std::string>& names : {std::set<std::string>{}, {"NVIDIA L40S", ""}}) {
    EXPECT_EQ(BesideOfDevices(names).least, 0);
    EXPECT_FALSE(BesideOfDevices(names).process.has_value());
  }
}

// A search under the nominal profile leaves as much room as admission.
TEST(DeviceKindsTest, DevicesThatAreNotAlike_KeepWhatProcessesTake) {
  const DeviceCosts costs = CostsOfDevices({"NVIDIA H200", "NVIDIA L40S"});
  EXPECT_EQ(costs.profile.name, kNominalDevice);
  EXPECT_EQ(costs.profile.unestimated_bytes, FindProfile("h200")->unestimated_bytes);
  EXPECT_TRUE(costs.profile.process.has_value());
  EXPECT_FALSE(CostsOfDevices({"NVIDIA L40S"}).profile.process.has_value());
}

}  // namespace
}  // namespace phalanx::schedule
