// core/base/shared.h: a value that many hold and nobody changes.
#pragma once

#include <memory>
#include <utility>

namespace phalanx {

// A copy shares the value, so it costs the same however large that is. Equal if the values are.
// Immutable; safe to read from any thread.
template <typename T>
class Shared {
 public:
  Shared() : value_(Default()) {}
  Shared(T value) : value_(std::make_shared<const T>(std::move(value))) {}

  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }

  friend bool operator==(const Shared& a, const Shared& b) {
    return a.value_ == b.value_ || *a.value_ == *b.value_;
  }

 private:
  static const std::shared_ptr<const T>& Default() {
    static const auto& value = *new std::shared_ptr<const T>(std::make_shared<const T>());
    return value;
  }

  std::shared_ptr<const T> value_;  // never null
};

}  // namespace phalanx
