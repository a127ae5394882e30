// gloo/common/memory.h: what Gloo's own headers need of a header that Debian's package leaves out.
//
// Gloo's pairs hold one of these by value, so its size counts; nothing here is called.
// unit/worker/comm compares the size of a pair with what the library makes.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr;

template <typename T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> ptr_;
};

}  // namespace gloo
