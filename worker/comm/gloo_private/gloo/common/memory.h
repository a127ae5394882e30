// gloo/common/memory.h: what Gloo's own headers need of a header that Debian's package leaves out.
//
// Gloo's pairs and buffers hold these by value, so their size counts; nothing of
// Gloo's is called here. unit/worker/comm compares the sizes of both with what the library makes.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr;

template <typename T>
class ShareableNonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

template <typename T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>&);

  // Ours: whether what it points to is gone, or it was never set.
  bool expired() const { return ptr_.expired(); }
  // Ours: whether it points to that.
  bool IsOf(const T* one) const { return ptr_.lock().get() == one; }

 private:
  std::weak_ptr<T> ptr_;
};

}  // namespace gloo
