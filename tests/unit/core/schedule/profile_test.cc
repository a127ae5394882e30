#include "core/schedule/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "core/base/violation.h"
#include "core/schedule/built_in_profiles.h"

namespace phalanx::schedule {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kText[] = R"({
  "version": 2, "name": "x1",
  "measured": {"device": "X1", "software": "s", "driver": "550.1", "power_limit_watts": 300,
               "temperature_celsius": 60, "clock_mhz": 1400, "source": "here"},
  "products": [
    {"rows": 1024, "inputs": 64, "outputs": 64, "forward": 1e-3, "input_gradient": 2e-3,
     "weight_gradient": 3e-3},
    {"rows": 1024, "inputs": 4096, "outputs": 4096, "forward": 1e-1, "input_gradient": 2e-1,
     "weight_gradient": 3e-1}],
  "fp8": {"products": [{"rows": 1024, "inputs": 64, "outputs": 64, "forward": 5e-4,
                        "input_gradient": 1e-3, "weight_gradient": 2e-3}],
          "cast_bytes_per_second": 6e8},
  "attention": [
    {"rows": 1024, "length": 512, "heads": 8, "head_size": 64, "causal": true, "forward": 1e-3,
     "backward": 4e-3},
    {"rows": 1024, "length": 512, "heads": 8, "head_size": 64, "causal": false, "forward": 3e-3,
     "backward": 5e-3}],
  "memory_bytes_per_second": 1e9, "update_bytes_per_second": 2e9, "launch": 1e-5,
  "power": null,
  "message": {"bytes_per_second": 1e8, "latency": 1e-4},
  "collective": {"bytes_per_second": 2e8, "latency": 0},
  "network": null, "unestimated_bytes": null
})";

DeviceProfile Read(const std::string& text = kText) {
  auto profile = ReadProfile(text);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *std::move(profile) : NominalProfile();
}

std::vector<std::string> Wrong(const std::string& from, const std::string& to) {
  std::vector<std::string> lines;
  const std::string text = absl::StrReplaceAll(kText, {{from, to}});
  EXPECT_NE(text, kText) << from;
  for (const Violation& violation : ViolationsOf(ReadProfile(text).status()))
    lines.push_back(ToString(violation));
  return lines;
}

TEST(ProfileTest, Read_IsWhatIsWritten) {
  const DeviceProfile profile = Read();
  EXPECT_EQ(profile.name, "x1");
  EXPECT_EQ(profile.measured.driver, "550.1");
  EXPECT_EQ(profile.measured.power_limit_watts, 300);
  EXPECT_EQ(profile.products.size(), 2u);
  EXPECT_EQ(profile.message.latency, 1e-4);
  EXPECT_FALSE(profile.network.has_value());
}

// Joules and a second clock, of the same entries.
DeviceProfile WithPower(DeviceProfile profile) {
  profile.power = PowerRates{.idle_watts = 70.5,
                             .joules = profile,
                             .slow_clock_mhz = 1000,
                             .slow = profile,
                             .slow_joules = profile};
  profile.power->slow.products.front().forward = 1.0 / 3;
  profile.power->slow.launch = 3e-5;
  for (WorkRates* joules : {&profile.power->joules, &profile.power->slow_joules})
    joules->launch = 0;  // at idle power
  return profile;
}

TEST(ProfileTest, Write_IsReadAsTheSame) {
  DeviceProfile profile = WithPower(Read());
  profile.unestimated_bytes = 1'234'567'890'123;
  profile.collective.joules_per_byte = 8.5e-10;
  const DeviceProfile read = Read(WriteProfile(profile));
  EXPECT_EQ(read.name, profile.name);
  EXPECT_EQ(read.measured.source, profile.measured.source);
  EXPECT_EQ(read.measured.clock_mhz, profile.measured.clock_mhz);
  EXPECT_EQ(read.products.back().weight_gradient, profile.products.back().weight_gradient);
  EXPECT_EQ(read.attention.back().backward, profile.attention.back().backward);
  EXPECT_EQ(read.unestimated_bytes, profile.unestimated_bytes);
  ASSERT_TRUE(read.power.has_value() && read.fp8.has_value());
  EXPECT_EQ(read.collective.joules_per_byte, 8.5e-10);
  EXPECT_EQ(read.message.joules_per_byte, 0);
  EXPECT_EQ(read.power->idle_watts, 70.5);
  EXPECT_EQ(read.power->slow.products.front().forward, 1.0 / 3);
  EXPECT_EQ(read.power->slow_joules.update_bytes_per_second, profile.update_bytes_per_second);
  EXPECT_EQ(WriteProfile(read), WriteProfile(profile));
}

// Builds that know no other version read it.
TEST(ProfileTest, WithoutProcess_IsOfTheVersionBefore) {
  EXPECT_FALSE(Read().process.has_value());
  DeviceProfile profile = Read();
  EXPECT_THAT(WriteProfile(profile),
              AllOf(HasSubstr("\"version\": 2"), Not(HasSubstr("\"process\""))));
  profile.process = ProcessBytes{.context = 1};
  EXPECT_THAT(WriteProfile(profile), HasSubstr("\"version\": 3"));
  EXPECT_THAT(Wrong("\"network\": null", "\"network\": null, \"process\": null"),
              ElementsAre("process: unknown field"));
}

TEST(ProfileTest, WhatTrainingRunsBesides_IsReadAsItIsWritten_AndMayBeMissing) {
  DeviceProfile profile = WithPower(Read());
  EXPECT_EQ(profile.products[0].weight_gradient_written, 0);
  EXPECT_EQ(profile.loss_bytes_per_second, 0);
  EXPECT_THAT(WriteProfile(profile), AllOf(HasSubstr("\"version\": 2"), Not(HasSubstr("loss_"))));
  profile.products[0].weight_gradient_written = 2e-3;
  profile.fp8->products[0].weight_gradient_written = 1e-3;
  profile.loss_bytes_per_second = 3e9;
  profile.power->joules.embedding_bytes_per_second = 4e7;
  const std::string text = WriteProfile(profile);
  EXPECT_THAT(text, HasSubstr("\"version\": 3"));
  const DeviceProfile read = Read(text);
  EXPECT_EQ(read.products[0].weight_gradient_written, 2e-3);
  EXPECT_EQ(read.products[1].weight_gradient_written, 0);
  EXPECT_EQ(read.fp8->products[0].weight_gradient_written, 1e-3);
  EXPECT_EQ(read.loss_bytes_per_second, 3e9);
  EXPECT_EQ(read.power->joules.embedding_bytes_per_second, 4e7);
  EXPECT_FALSE(read.process.has_value());
  EXPECT_EQ(WriteProfile(read), text);
  EXPECT_THAT(Wrong("\"launch\": 1e-5", "\"launch\": 1e-5, \"loss_bytes_per_second\": 0"),
              ElementsAre("loss_bytes_per_second: 0: must be a number above 0"));
}

TEST(ProfileTest, Process_IsReadAsItIsWritten) {
  DeviceProfile profile = Read();
  profile.process = ProcessBytes{.context = 700'000'001};
  const DeviceProfile alone = Read(WriteProfile(profile));
  ASSERT_TRUE(alone.process.has_value());
  EXPECT_EQ(alone.process->context, 700'000'001);
  EXPECT_FALSE(alone.process->communicators.has_value());
  profile.process->communicators =
      CommunicatorsBytes{.library = 1, .messages = {2, 3}, .control = {4, 0}, .wide = {6, 7}};
  const DeviceProfile read = Read(WriteProfile(profile));
  ASSERT_TRUE(read.process.has_value() && read.process->communicators.has_value());
  const CommunicatorsBytes& bytes = *read.process->communicators;
  EXPECT_EQ(bytes.library, 1);
  EXPECT_EQ(bytes.messages.made, 2);
  EXPECT_EQ(bytes.messages.each_peer, 3);
  EXPECT_EQ(bytes.control.made, 4);
  EXPECT_EQ(bytes.control.each_peer, 0);
  EXPECT_EQ(bytes.wide.made, 6);
  EXPECT_EQ(bytes.wide.each_peer, 7);
}

TEST(ProfileTest, Process_NamesFieldValueAndRule) {
  DeviceProfile profile = Read();
  profile.process = ProcessBytes{.context = 12345, .communicators = CommunicatorsBytes()};
  const std::string text = WriteProfile(profile);
  const auto wrong = [&](const std::string& from, const std::string& to) {
    std::vector<std::string> lines;
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(changed, text) << from;
    for (const Violation& violation : ViolationsOf(ReadProfile(changed).status()))
      lines.push_back(ToString(violation));
    return lines;
  };
  EXPECT_THAT(wrong("12345", "0"),
              ElementsAre("process.context_bytes: 0: must be a number above 0"));
  EXPECT_THAT(
      wrong("\"library_bytes\": 0", "\"library_bytes\": -1"),
      ElementsAre("process.communicators.library_bytes: -1: must be a number of at least 0"));
  EXPECT_THAT(wrong("\"wide\"", "\"broad\""),
              ElementsAre("process.communicators.wide: is required",
                          "process.communicators.broad: unknown field"));
}

TEST(ProfileTest, Write_OfBuiltInOnes_IsReadAsTheSame) {
  for (const absl::string_view text : BuiltInProfiles()) {
    const std::string written = WriteProfile(Read(std::string(text)));
    EXPECT_EQ(WriteProfile(Read(written)), written);
  }
}

TEST(ProfileTest, Read_NamesFieldValueAndRule) {
  EXPECT_THAT(Wrong(R"("version": 2)", R"("version": 1)"),
              ElementsAre("version: 1: this build reads profiles of versions 2 and 3"));
  EXPECT_THAT(Wrong("\"forward\": 1e-1", "\"forward\": -1"),
              ElementsAre("products[1].forward: -1: must be a number above 0"));
  EXPECT_THAT(Wrong("\"launch\": 1e-5", "\"launch\": \"fast\""),
              ElementsAre("launch: fast: must be a number of at least 0"));
  EXPECT_THAT(Wrong("\"causal\": false", "\"causal\": 0"),
              ElementsAre("attention[1].causal: 0: must be true or false"));
  EXPECT_THAT(Wrong("\"network\": null", "\"net\": null"),
              ElementsAre("network: is required; null: not measured", "net: unknown field"));
  EXPECT_THAT(Wrong("\"driver\": \"550.1\"", "\"driver\": 550"),
              ElementsAre("measured.driver: 550: must be a text"));
}

// Steps that are worked out of them would be no numbers, and no order of steps one.
TEST(ProfileTest, Read_FiguresThatNobodyMeasures_AreRefused) {
  EXPECT_THAT(Wrong("\"forward\": 1e-1", "\"forward\": 1e300"),
              ElementsAre("products[1].forward: 1e300: must be from 1e-24 to 1e24"));
  EXPECT_THAT(Wrong("\"memory_bytes_per_second\": 1e9", "\"memory_bytes_per_second\": 1e-300"),
              ElementsAre("memory_bytes_per_second: 1e-300: must be from 1e-24 to 1e24"));
  EXPECT_THAT(Wrong("\"unestimated_bytes\": null", "\"unestimated_bytes\": 1e20"),
              ElementsAre("unestimated_bytes: 1e+20: must be at most 1e13"));
  DeviceProfile one_clock = WithPower(Read());
  one_clock.power->slow_clock_mhz = 1400 * (1 - 1e-12);
  EXPECT_THAT(std::string(ReadProfile(WriteProfile(one_clock)).status().message()),
              HasSubstr("must be above power.slow_clock_mhz"));
}

TEST(ProfileTest, Read_TellsAllAtOnce) {
  const auto status = ReadProfile(R"({"version": 2, "name": "x"})").status();
  EXPECT_EQ(ViolationsOf(status).size(), 12u) << status;
  EXPECT_FALSE(ReadProfile("{").ok());
  EXPECT_FALSE(ReadProfile("[]").ok());
}

TEST(ProfileTest, Product_GoesAtTheRateOfTheNearestShape) {
  const DeviceProfile profile = Read();
  const auto seconds = [&](ProductPass pass, double rows, double inputs, double outputs) {
    return ProductSeconds(profile, pass, rows, inputs, outputs) - profile.launch;
  };
  EXPECT_DOUBLE_EQ(seconds(ProductPass::kForward, 1024, 64, 64), 1e-3);
  EXPECT_NEAR(seconds(ProductPass::kInputGradient, 1024, 128, 64), 4e-3, 1e-15);
  EXPECT_NEAR(seconds(ProductPass::kWeightGradient, 1024, 2048, 4096), 1.5e-1, 1e-12);
  EXPECT_EQ(ProductSeconds(profile, ProductPass::kForward, 0, 64, 64), 0);
}

TEST(ProfileTest, WeightGradient_ThatIsWritten_IsTheMeasuredOneOrThatWhichIsAdded) {
  DeviceProfile profile = Read();
  const auto written = [&] {
    return ProductSeconds(profile, ProductPass::kWrittenWeightGradient, 1024, 64, 64) -
           profile.launch;
  };
  EXPECT_DOUBLE_EQ(written(), 3e-3);
  profile.products[0].weight_gradient_written = 2.5e-3;
  EXPECT_DOUBLE_EQ(written(), 2.5e-3);
}

TEST(ProfileTest, LossAndEmbedding_GoAtTheirRatesOrAtThatOfMemory) {
  DeviceProfile profile = Read();
  EXPECT_DOUBLE_EQ(LossSeconds(profile, 1e9), 1 + profile.launch);
  EXPECT_DOUBLE_EQ(EmbeddingSeconds(profile, 1e9), 1 + profile.launch);
  profile.loss_bytes_per_second = 5e8;
  profile.embedding_bytes_per_second = 2.5e8;
  EXPECT_DOUBLE_EQ(LossSeconds(profile, 1e9), 2 + profile.launch);
  EXPECT_DOUBLE_EQ(EmbeddingSeconds(profile, 1e9), 4 + profile.launch);
  EXPECT_EQ(LossSeconds(profile, 0), 0);
}

TEST(ProfileTest, Attention_GoesAtTheRateOfItsMask) {
  const DeviceProfile profile = Read();
  AttentionShape shape{.rows = 2048, .length = 512, .heads = 8, .head_size = 64, .causal = true};
  EXPECT_NEAR(AttentionSeconds(profile, shape, false) - profile.launch, 2e-3, 1e-12);
  shape.causal = false;
  EXPECT_NEAR(AttentionSeconds(profile, shape, true) - profile.launch, 10e-3, 1e-12);
}

TEST(ProfileTest, Fp8_HasItsOwnProductsAndReadsOnceMoreForAnUnknownLargest) {
  DeviceProfile profile = Read();
  const auto forward = [&] {
    return Fp8ProductSeconds(profile, ProductPass::kForward, 2048, 64, 64) - profile.launch;
  };
  EXPECT_NEAR(forward(), 1e-3, 1e-12);
  // 4 bytes at 6e8 a second; 2 bytes at 1e9 to find the largest magnitude.
  EXPECT_NEAR(Fp8CastSeconds(profile, 1e6, true), 4e6 / 6e8 + profile.launch, 1e-12);
  EXPECT_NEAR(Fp8CastSeconds(profile, 1e6, false), 4e6 / 6e8 + 2e-3 + 2 * profile.launch, 1e-12);
  EXPECT_EQ(Fp8CastSeconds(profile, 0, true), 0);
  profile.fp8.reset();
  EXPECT_NEAR(forward(), 2e-3, 1e-12);
  EXPECT_EQ(Fp8CastSeconds(profile, 1e6, true), 0);
}

TEST(ProfileTest, BuiltIn_AllAreSoundAndHaveNamesOfTheirOwn) {
  const std::vector<std::string> names = ProfileNames();
  EXPECT_EQ(names.size(), BuiltInProfiles().size() + 1);
  EXPECT_THAT(names, Contains("h200"));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const absl::string_view text : BuiltInProfiles()) {
    const auto profile = ReadProfile(text);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_THAT(profile->measured.source, Not(IsEmpty()));
  }
}

TEST(ProfileTest, Find_UnknownKind_NamesThoseThatThereAre) {
  EXPECT_EQ(FindProfile("nominal")->name, "nominal");
  EXPECT_THAT(std::string(FindProfile("h300").status().message()),
              HasSubstr("there is no profile of devices \"h300\"; there are nominal, h200"));
}

}  // namespace
}  // namespace phalanx::schedule
