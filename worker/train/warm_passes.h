// worker/train/warm_passes.h: which passes a process has run, by their shape.
//
// On CUDA a pass may load kernels the first time that it is run (cuBLAS chooses one for each shape
// of a product, perhaps another where it is written than where it is added), and loading waits for
// all that the device has been given: among that must be no message, from or to a peer who waits
// for this rank or loads something too (docs/decisions/0011). So a pass whose shape is new is run
// once alone, before the messages of an epoch. What is loaded stays for as long as the process
// lives, whatever the layout: passes of a shape that is known are not run again.
//
// A shape is what a part computes, the local matrices it computes with, and how many samples it
// takes at a time. Lengths are no part of it: they differ from step to step.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

namespace phalanx::train {

class WarmPasses {
 public:
  bool Has(const std::string& shape) const { return shapes_.contains(shape); }
  void Add(std::string shape) { shapes_.insert(std::move(shape)); }

  // Whether this process has run a whole program, and so has every kernel of a step. Once some rank
  // has, the first step of an epoch is the first run of its program for all.
  bool program() const { return program_; }
  void KnowProgram() { program_ = true; }
  void AddProgram() {
    program_ = true;
    ++programs_;
  }

  // What was run for this alone.
  void CountMicrobatches(int64_t count) { microbatches_ += count; }
  int64_t microbatches() const { return microbatches_; }
  int64_t programs() const { return programs_; }

 private:
  std::set<std::string> shapes_;
  bool program_ = false;
  int64_t microbatches_ = 0, programs_ = 0;
};

}  // namespace phalanx::train
