// core/plan/derivation.h: the version of what ranks derive.
#pragma once

#include <cstdint>

namespace phalanx::plan {

// Version of everything that ranks of one epoch derive from document and layout and have to agree
// on: plan, programs and their tickets, shares, and the form of what they send each other. It goes
// up with any change of these, the constants of costs included: tests/unit/core/schedule/
// derivation_test.cc fails for one that leaves it. What an older build does not read and no older
// layout has, such as failure domains, is in the digest instead: ranks of that build find that
// theirs is another one, and layouts without it go on as they are.
inline constexpr int32_t kDerivation = 6;
// Ranks carry out layouts from this one on, so that a job goes on while its cluster comes to
// another release: a layout keeps the version that it was planned under.
inline constexpr int32_t kOldestDerivation = 5;
// From this one on parameters are gathered in the order of a forward pass; before, in that in which
// buckets are stored.
inline constexpr int32_t kDerivationOfForwardGathers = 6;
// From this one on ranks tell each other what their first step took, and mirrors get what they lack
// at the ends of as many steps as follow from that (safe_again.h); before, of kMirrorStepsMax.
inline constexpr int32_t kDerivationOfAgreedMirrorSteps = 6;
// From this one on homes tell their mirrors sums of what these are to hold (mirror_check.h).
inline constexpr int32_t kDerivationOfComparedMirrors = 6;
// From this one on ranks on CPU prove to each other that they are of the epoch when they connect
// (worker/comm/links.h); before, whoever connected first was taken for a peer.
inline constexpr int32_t kDerivationOfProvenLinks = 6;
// From this one on GPUs are connected for their state before it moves (message_peers.h), and
// communicators of tensor ranks are as wide as NCCL makes them.
inline constexpr int32_t kDerivationOfConnectedState = 6;
// From this one on ranks tell each other for a trace what their communicators did, too.
inline constexpr int32_t kDerivationOfTracedOperations = 6;
// From this one on who gives state up gives it to who is to have it (worker/train/transfers.h);
// before, the first rank that holds some gives it.
inline constexpr int32_t kDerivationOfLeavingGivers = 6;
// From this one on replicas compare their parameters by sums of words of eight bytes; before, of
// elements.
inline constexpr int32_t kDerivationOfWordSums = 6;
// From this one on ranks that are homes of all weights of a part update them all, and gather
// nothing, as soon as no mirror lacks anything (EveryReplicaIsHome); equally wide ones get all sums
// by one collective.
inline constexpr int32_t kDerivationOfUpdatesEverywhere = 6;
// From this one on ranks leave an epoch that a newer one replaces with a step that all of them do
// (kWishLeave of worker/train/commit.h); before, each as soon as it is connected.
inline constexpr int32_t kDerivationOfLeavingAtAStep = 6;
// Ranks that carry this one out read failure domains, in layouts of whatever derivation.
inline constexpr int32_t kDerivationOfDomains = 6;

}  // namespace phalanx::plan
