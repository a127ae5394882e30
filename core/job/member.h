// core/job/member.h: the member of a struct that a field of a job file fills, its type known.
//
// The schema (core/job/schema.h) names members by pointers, Bound<&Optimizer::epsilon>; whoever
// walks the schema gets a typed pointer for an owner and does what its type asks for: reads,
// writes, compares. So a field is written once, in the schema.
//
// Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "core/job/job_spec.h"

namespace phalanx::job {

// An enumerator. Every enumeration of a spec is a byte.
struct Choice {
  uint8_t* number;
};

// A list of enumerators.
struct Choices {
  void* list;
  std::vector<uint8_t> (*get)(const void* list);
  void (*set)(void* list, const std::vector<uint8_t>& numbers);
  size_t length;  // 0: any
};

// A mapping with fields of its own.
struct Section {
  void* holder;
  void* (*owner)(void* holder);  // of its fields; nullptr: there is none
  void* (*make)(void* holder);   // the same, made where there is none
};

// A list of such mappings.
struct Sections {
  void* list;
  size_t (*size)(const void* list);
  void (*resize)(void* list, size_t size);
  void* (*at)(void* list, size_t index);
  Family (*family)(const void* item);  // of a module; else none
};

using Member =
    std::variant<std::monostate, std::string*, std::optional<std::string>*, int32_t*, int64_t*,
                 uint64_t*, double*, bool*, absl::Duration*, std::optional<absl::Duration>*,
                 std::vector<int32_t>*, std::vector<std::string>*, std::array<double, 2>*,
                 std::map<std::string, std::string>*, Choice, Choices, Section, Sections>;
using Binding = Member (*)(void* owner);

namespace internal {

template <typename List>
Choices ChoicesOf(List& list, size_t length) {
  return {&list,
          [](const void* from) {
            std::vector<uint8_t> numbers;
            for (const auto value : *static_cast<const List*>(from)) {
              numbers.push_back(static_cast<uint8_t>(value));
            }
            return numbers;
          },
          [](void* to, const std::vector<uint8_t>& numbers) {
            List& values = *static_cast<List*>(to);
            if constexpr (requires { values.resize(0); }) values.resize(numbers.size());
            std::transform(numbers.begin(), numbers.end(), values.begin(), [](uint8_t number) {
              return static_cast<typename List::value_type>(number);
            });
          },
          length};
}

template <typename T>
Section SectionOf(T& section) {
  const auto itself = [](void* holder) { return holder; };
  return {&section, itself, itself};
}
template <typename T>
Section SectionOf(std::optional<T>& section) {
  using Holder = std::optional<T>;
  return {&section,
          [](void* holder) -> void* {
            Holder& there = *static_cast<Holder*>(holder);
            return there.has_value() ? &*there : nullptr;
          },
          [](void* holder) -> void* { return &static_cast<Holder*>(holder)->emplace(); }};
}

template <typename T>
Sections SectionsOf(std::vector<T>& items) {
  using List = std::vector<T>;
  return {&items, [](const void* list) { return static_cast<const List*>(list)->size(); },
          [](void* list, size_t size) { static_cast<List*>(list)->resize(size); },
          [](void* list, size_t index) -> void* { return &(*static_cast<List*>(list))[index]; },
          [](const void* item) {
            if constexpr (std::is_same_v<T, Module>) {
              return static_cast<const Module*>(item)->architecture.family;
            }
            return kNoFamily;
          }};
}

template <typename T>
Member MemberOf(T& value) {
  if constexpr (std::is_constructible_v<Member, T*>)
    return &value;
  else if constexpr (std::is_enum_v<T>) {
    static_assert(sizeof(T) == 1);
    return Choice{reinterpret_cast<uint8_t*>(&value)};
  } else
    return SectionOf(value);
}
template <typename T>
Member MemberOf(std::vector<T>& list) {
  if constexpr (std::is_constructible_v<Member, std::vector<T>*>)
    return &list;
  else if constexpr (std::is_enum_v<T>)
    return ChoicesOf(list, 0);
  else
    return SectionsOf(list);
}
inline Member MemberOf(std::array<MeshAxis, 4>& list) { return ChoicesOf(list, list.size()); }

template <typename Owner, typename T>
Member BindTo(void* owner, T Owner::*member) {
  return MemberOf(static_cast<Owner*>(owner)->*member);
}

}  // namespace internal

template <auto kMember>
inline constexpr Binding Bound = [](void* owner) { return internal::BindTo(owner, kMember); };

// A mapping whose fields are members of the owner itself.
inline constexpr Binding kOfOwner = [](void* owner) -> Member {
  const auto itself = [](void* holder) { return holder; };
  return Section{owner, itself, itself};
};

}  // namespace phalanx::job
