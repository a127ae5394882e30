#include "coordinator/machine/agenda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Instant At(int64_t second) { return absl::FromUnixSeconds(second); }

TEST(AgendaTest, Note_ALaterDeadline_LeavesTheEarlierOneStanding) {
  Agenda<int> agenda;
  agenda.Note(1, At(10));
  agenda.Note(1, At(20));
  EXPECT_EQ(agenda.next(), At(10));
  agenda.Note(1, At(5));
  EXPECT_EQ(agenda.next(), At(5));
}

TEST(AgendaTest, Take_ReturnsWhatIsDueInOrderOfKey) {
  Agenda<int> agenda;
  agenda.Note(3, At(10));
  agenda.Note(1, At(20));
  agenda.Note(2, At(30));
  EXPECT_THAT(agenda.Take(At(9)), IsEmpty());
  EXPECT_THAT(agenda.Take(At(20)), ElementsAre(1, 3));
  EXPECT_EQ(agenda.next(), At(30));
  agenda.Note(1, At(25));
  EXPECT_EQ(agenda.next(), At(25)) << "one that was taken is noted anew";
}

TEST(AgendaTest, NoDeadline_IsNotNoted) {
  Agenda<int> agenda;
  agenda.Note(1, absl::InfiniteFuture());
  EXPECT_EQ(agenda.next(), absl::InfiniteFuture());
  EXPECT_THAT(agenda.Take(absl::InfiniteFuture()), IsEmpty());
}

TEST(AgendaTest, Forgotten_IsNeverDue) {
  Agenda<int> agenda;
  agenda.Note(1, At(10));
  agenda.Forget(1);
  agenda.Forget(2);
  EXPECT_EQ(agenda.next(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace phalanx::coordinator
