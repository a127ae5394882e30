#include "tests/bench/faults/layouts.h"

namespace phalanx::e2e {

std::vector<KilledLayout> KilledLayouts() {
  return {
      {.name = "six ranks, vision dp2, language tp2 dp2",
       .job = {.vision = "ranks: 2", .language = "ranks: 4, tp: 2", .batch = 6, .standby = true},
       .ranks = 6},
      {.name = "language dp4",
       .job = {.vision = "", .language = "ranks: 4", .batch = 7, .standby = true},
       .ranks = 4},
      {.name = "three_phase, vision dp4, language pp2 dp2",
       .job = {.vision = "ranks: 4",
               .language = "ranks: 4, pp: 2",
               .language_offset = "vision",
               .schedule = "{name: three_phase, encoder_chunks: 2}",
               .batch = 8},
       .ranks = 4},
      {.name = "zero_bubble_v, vision dp2, language pp2 dp2",
       .job = {.vision = "ranks: 2",
               .language = "ranks: 4, pp: 2",
               .schedule = "{name: zero_bubble_v}",
               .layers = 4,
               .batch = 8},
       .ranks = 6,
       .with_work = 2},
      {.name = "twelve ranks, language tp3 dp2 pp2",
       .job = {.vision = "",
               .language = "ranks: 12, tp: 3, pp: 2",
               .layers = 2,
               .heads = 8,
               .kv_heads = 2,
               .batch = 7},
       .ranks = 12,
       .devices = 4},
      {.name = "vision dp2, audio dp2, language dp2",
       .job = {.vision = "ranks: 2", .audio = "ranks: 2", .language = "ranks: 2", .batch = 7},
       .ranks = 6,
       .data = {.samples = 30, .images_min = 0, .images_max = 2, .sounds_max = 1, .words = 4}},
      {.name = "interleaved, vision dp2, language pp2 dp2",
       .job = {.vision = "ranks: 2",
               .language = "ranks: 4, pp: 2",
               .schedule = "{name: interleaved, chunks: 2}",
               .layers = 4,
               .batch = 8},
       .ranks = 6,
       .with_work = 2},
      {.name = "zero_bubble_h1, vision dp2, language pp2 dp2",
       .job = {.vision = "ranks: 2",
               .language = "ranks: 4, pp: 2",
               .schedule = "{name: zero_bubble_h1}",
               .layers = 4,
               .batch = 8},
       .ranks = 6,
       .with_work = 2}};
}

KilledLayout LayoutOfOneJob() {
  // A tenth of the others' learning rate: in thousands of steps of theirs what is rounded otherwise
  // grows to 1e-5 of the loss.
  return {.name = "vision dp4, language tp2 dp2 on the same ranks",
          .job = {.vision = "ranks: 4",
                  .language = "ranks: 4, tp: 2",
                  .language_offset = "vision",
                  .batch = 8,
                  .standby = true},
          .ranks = 4,
          .learning_rate = 1e-6};
}

}  // namespace phalanx::e2e
