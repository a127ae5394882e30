// worker/model/weight_work.h: parameters as a stage sees them, and weight gradients put off.
//
// BackwardInput leaves behind, for each parameter, the operands of its gradient; BackwardWeight
// multiplies and adds them. Where the two are one pass, this is done along the way, where the pass
// would wait for other ranks, and operands are given back as soon as they are used. Operands are
// shared with the passes, so what enters a WeightWork is not changed afterwards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "worker/model/fp8.h"
#include "worker/model/token_rows.h"

namespace phalanx::model {

// Views into the flat buffers: a matrix [rows, cols], whose columns may be what is contiguous, a
// vector [n]. `gradient` is undefined for a frozen parameter. Undefined both: the parameter does
// not exist (no bias).
struct Parameter {
  at::Tensor weight;
  at::Tensor gradient;
  std::shared_ptr<Fp8Weight> fp8 = nullptr;  // where its products are in FP8
};

// Called between two layers by every pass: the host may wait there until the device has caught up.
using Pace = std::function<void()>;

// Rows [first, first + count) of a parameter.
Parameter NarrowRows(const Parameter& parameter, int64_t first, int64_t count);

// While one lives, its thread does every product that may be written (worker/model/unwritten.h) in
// both ways: it is written, then added. On a device these may be different kernels, and a step runs
// both. What gradients hold then is of no use.
class ProductsInBothWays {
 public:
  ProductsInBothWays();
  ~ProductsInBothWays();
  ProductsInBothWays(const ProductsInBothWays&) = delete;
  ProductsInBothWays& operator=(const ProductsInBothWays&) = delete;
};

// Not thread-safe.
class WeightWork {
 public:
  // gradient += output_gradient^T input: of y = x W^T, for [rows of tokens, features] operands,
  // which are rounded here where they have to be and are not.
  void Matrix(const Parameter& parameter, Operand output_gradient, Operand input);
  // gradient += column sums of output_gradient: `sums`, where they are known.
  void Bias(const Parameter& parameter, at::Tensor output_gradient, at::Tensor sums = {});
  // gradient += summand, of equal shape.
  void Sum(const Parameter& parameter, at::Tensor summand);
  // What rows of text add to a table whose row 0 is that of token `first`: AddTokenRows (kernels.h)
  // of `values`, one a row of the microbatch.
  void Rows(const Parameter& parameter, int64_t first, const TokenRows& tokens, at::Tensor values);

  // What follows is of another layer.
  void NextLayer();

  // From now on RunSome() adds something. `layer_done`: whenever what stands before a NextLayer()
  // has been added.
  void RunAlong(Pace layer_done = nullptr) {
    along_ = true;
    layer_done_ = std::move(layer_done);
  }
  // Where RunAlong() was called: adds what waits, in the order of the calls above, up to so many
  // products of matrices, and forgets it.
  static constexpr int kAll = 1 << 30;
  void RunSome(int products);
  // Adds everything, in the order of the calls above, and forgets it.
  void Run(const Pace& pace = nullptr);
  // Products of matrices that wait.
  int waiting() const { return waiting_; }

 private:
  enum class Kind : uint8_t { kMatrix, kBias, kSum, kRows, kNextLayer };
  struct Item {
    Kind kind;
    at::Tensor gradient;
    Operand left;
    Operand right;
    at::Tensor order;
    int64_t first = 0;
  };
  void RunFirst(const Pace& pace);

  std::deque<Item> items_;
  int waiting_ = 0;  // products among them
  bool along_ = false;
  Pace layer_done_;
};

}  // namespace phalanx::model
