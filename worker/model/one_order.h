// worker/model/one_order.h: kernels of LibTorch whose sums have one order.
#pragma once

namespace phalanx::model {

// While one lives that is `wanted`, operations of LibTorch that know such a way take it, so that
// equal operands give equal bits. Of the whole process: others that only know the other way throw
// meanwhile, whichever thread calls them, so it lives for one call. Not thread-safe.
class OneOrder {
 public:
  explicit OneOrder(bool wanted);
  ~OneOrder();
  OneOrder(const OneOrder&) = delete;
  OneOrder& operator=(const OneOrder&) = delete;

 private:
  const bool wanted_;
  bool fills_ = false;  // what LibTorch was set to before
};

}  // namespace phalanx::model
