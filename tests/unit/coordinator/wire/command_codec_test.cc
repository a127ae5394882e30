#include "coordinator/wire/command_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "coordinator/machine/incident.h"
#include "coordinator/wire/common_codec.h"
#include "core/wire/fault_codec.h"
#include "core/wire/layout_codec.h"

namespace phalanx::coordinator {
namespace {

TEST(CommandTest, Assign_CarriesEverything) {
  auto request = std::make_shared<JobRequest>();
  request->document = {.text = "text", .directory = "/d"};
  request->checkpoints = true;
  v1::Command command;
  const plan::Layout layout{.epoch = Epoch{2},
                            .schedule = {.name = job::ScheduleName::k1F1B},
                            .nodes = {{"n", {1, 3}}},
                            .data_digest = "data"};
  ToProto(4,
          Assign{.job = JobId{1},
                 .epoch = Epoch{2},
                 .request = request,
                 .layout = layout,
                 .plan_digest = "plan",
                 .checkpoint = CheckpointSource{"/c/step-3", "manifest", 3},
                 .fence = 7},
          &command);
  EXPECT_EQ(command.command_number(), 4u);
  EXPECT_EQ(command.assign().epoch(), 2);
  EXPECT_EQ(command.assign().document().text(), "text");
  EXPECT_EQ(*wire::FromProto(command.assign().layout()), layout);
  EXPECT_EQ(command.assign().plan_digest(), "plan");
  EXPECT_EQ(command.assign().checkpoint().path(), "/c/step-3");
  EXPECT_EQ(command.assign().checkpoint().manifest_digest(), "manifest");
  EXPECT_EQ(command.assign().checkpoint().step(), 3);
  EXPECT_TRUE(command.assign().writes_checkpoints());
  EXPECT_EQ(command.assign().fence(), 7);
}

TEST(CommandTest, BeginEpoch_CarriesTheDecision) {
  v1::Command command;
  const EpochStart start{.decision = StepDecision{.step = 6, .gradient_scale = 0.1}, .updates = 6};
  ToProto(3, BeginEpoch{JobId{7}, Epoch{2}, start}, &command);
  EXPECT_EQ(command.begin_epoch().job(), 7);
  EXPECT_EQ(command.begin_epoch().epoch(), 2);
  EXPECT_EQ(FromProto(command.begin_epoch().begins()), start);
  EXPECT_FALSE(command.begin_epoch().ends());
  ToProto(4, BeginEpoch{.job = JobId{7}, .epoch = Epoch{3}, .start = start, .ends = true},
          &command);
  EXPECT_TRUE(command.begin_epoch().ends());
}

TEST(CommandTest, EpochFromCopies_CarriesTheLayoutInWhichTheyLie) {
  v1::Command command;
  plan::Layout layout{
      .epoch = Epoch{1}, .schedule = {.name = job::ScheduleName::k1F1B}, .data_digest = "data"};
  const CopiesSource copies{
      .epoch = Epoch{1}, .layout = layout, .plan_digest = "plan", .keepers = {Rank{4}, Rank{8}}};
  ToProto(3, BeginEpoch{.job = JobId{7}, .epoch = Epoch{3}, .copies = copies}, &command);
  const v1::CopiesSource& sent = command.begin_epoch().copies();
  EXPECT_EQ(sent.epoch(), 1);
  EXPECT_EQ(*wire::FromProto(sent.layout()), layout);
  EXPECT_EQ(sent.plan_digest(), "plan");
  const auto request = std::make_shared<const JobRequest>();
  EXPECT_THAT(sent.keepers(), testing::ElementsAre(4, 8));
  ToProto(4,
          Assign{.request = request, .layout = layout, .from_copies = true, .keepers = {Rank{4}}},
          &command);
  EXPECT_TRUE(command.assign().from_copies());
  EXPECT_THAT(command.assign().keepers(), testing::ElementsAre(4));
}

TEST(CommandTest, WriteIncident_CarriesTheTextOfTheFile) {
  auto incident = std::make_shared<Incident>();
  incident->number = 2;
  incident->lost = {3};
  v1::Command command;
  ToProto(4, WriteIncident{JobId{7}, Epoch{2}, 1, "/out", incident}, &command);
  EXPECT_EQ(command.write_incident().job(), 7);
  EXPECT_EQ(command.write_incident().epoch(), 2);
  EXPECT_EQ(command.write_incident().rank(), 1);
  EXPECT_EQ(command.write_incident().number(), 2);
  EXPECT_EQ(command.write_incident().output(), "/out");
  EXPECT_THAT(command.write_incident().text(), testing::HasSubstr("\"number\": 2,"));
}

TEST(CommandTest, PrepareStandby_CarriesTheLayout) {
  v1::Command command;
  ToProto(4,
          PrepareStandby{.job = JobId{1},
                         .epoch = Epoch{2},
                         .set = "standby/2/a",
                         .layout = plan::Layout{.epoch = Epoch{3}, .lost = {Rank{1}}},
                         .plan_digest = "a",
                         .attempt = 17},
          &command);
  const v1::PrepareStandby& order = command.prepare_standby();
  EXPECT_EQ(order.job(), 1);
  EXPECT_EQ(order.epoch(), 2);
  EXPECT_EQ(order.set(), "standby/2/a");
  EXPECT_EQ(order.layout().epoch(), 3);
  EXPECT_EQ(order.layout().lost(0), 1);
  EXPECT_EQ(order.plan_digest(), "a");
  EXPECT_EQ(order.attempt(), 17);
}

TEST(CommandTest, InjectFault_CarriesTheFault) {
  v1::Command command;
  const job::InjectedFault fault{.kind = job::FaultKind::kSlow, .rank = 3, .factor = 2};
  ToProto(3, InjectFault{Token{9}, JobId{7}, Epoch{2}, fault}, &command);
  EXPECT_EQ(command.inject_fault().job(), 7);
  EXPECT_EQ(command.inject_fault().epoch(), 2);
  EXPECT_EQ(wire::FromProto(command.inject_fault().fault()), fault);
}

TEST(CommandTest, TryPeer_CarriesWordAndPlace) {
  v1::Command command;
  ToProto(3, TryPeer{Token{9}, "beta", "alpha", "word", "10.0.0.1:4"}, &command);
  EXPECT_EQ(command.try_peer().word(), "word");
  EXPECT_EQ(command.try_peer().peer(), "10.0.0.1:4");
}

TEST(CommandTest, Wish_NamesItsEpoch) {
  v1::Command command;
  ToProto(4, Wish{JobId{1}, Epoch{2}}, &command);
  EXPECT_EQ(command.wish().job(), 1);
  EXPECT_EQ(command.wish().epoch(), 2);
}

}  // namespace
}  // namespace phalanx::coordinator
