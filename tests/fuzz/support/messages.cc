#include "tests/fuzz/support/messages.h"

#include <array>
#include <cstdint>
#include <limits>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/stubs/logging.h"

namespace phalanx::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Of texts that are no UTF-8 the library would tell thousands of times.
[[maybe_unused]] google::protobuf::LogHandler* const kQuiet =
    google::protobuf::SetLogHandler(nullptr);

std::string Word(Prng& prng) {
  static const std::array<std::string, 15> kWords = {
      "",     "n",    "cpu",    "gpu",         "job-1", "/data", "../..", "plan",
      "data", "1f1b", "mirror", "\x01\x1b[2J", "$0",    "$1",    "$2"};
  if (prng.Below(16) == 0) return std::string(5000, 'x');
  return kWords[prng.Below(kWords.size())];
}

int64_t Whole(Prng& prng) {
  static constexpr std::array<int64_t, 9> kExtremes = {0,
                                                       -1,
                                                       std::numeric_limits<int32_t>::max(),
                                                       std::numeric_limits<int32_t>::min(),
                                                       int64_t{1} << 53,
                                                       std::numeric_limits<int64_t>::max(),
                                                       std::numeric_limits<int64_t>::min(),
                                                       1000,
                                                       64};
  return prng.Below(4) == 0 ? kExtremes[prng.Below(kExtremes.size())]
                            : static_cast<int64_t>(prng.Below(4));
}

double Real(Prng& prng) {
  static constexpr std::array<double, 6> kExtremes = {0,
                                                      -1,
                                                      1e300,
                                                      std::numeric_limits<double>::infinity(),
                                                      std::numeric_limits<double>::quiet_NaN(),
                                                      1e-300};
  return prng.Below(2) == 0 ? kExtremes[prng.Below(kExtremes.size())] : prng.Uniform();
}

void Set(Message& message, const FieldDescriptor* field, Prng& prng, int depth) {
  const Reflection& to = *message.GetReflection();
  const bool many = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto value = static_cast<int32_t>(Whole(prng));
      return many ? to.AddInt32(&message, field, value) : to.SetInt32(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const int64_t value = Whole(prng);
      return many ? to.AddInt64(&message, field, value) : to.SetInt64(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      const auto value = static_cast<uint32_t>(Whole(prng));
      return many ? to.AddUInt32(&message, field, value) : to.SetUInt32(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const auto value = static_cast<uint64_t>(Whole(prng));
      return many ? to.AddUInt64(&message, field, value) : to.SetUInt64(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const double value = Real(prng);
      return many ? to.AddDouble(&message, field, value) : to.SetDouble(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const auto value = static_cast<float>(Real(prng));
      return many ? to.AddFloat(&message, field, value) : to.SetFloat(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      const bool value = prng.Below(2) == 0;
      return many ? to.AddBool(&message, field, value) : to.SetBool(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto value = static_cast<int>(prng.Below(24));
      return many ? to.AddEnumValue(&message, field, value)
                  : to.SetEnumValue(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string value = Word(prng);
      return many ? to.AddString(&message, field, value) : to.SetString(&message, field, value);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth == 0) return;
      return Fill(many ? *to.AddMessage(&message, field) : *to.MutableMessage(&message, field),
                  prng, depth - 1);
  }
}

// The message and all that are set within it, `depth` deep.
void Gather(Message& message, int depth, std::vector<Message*>& all) {
  all.push_back(&message);
  if (depth == 0) return;
  const Reflection& to = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  to.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      Gather(*to.MutableMessage(&message, field), depth - 1, all);
      continue;
    }
    for (int i = 0; i < to.FieldSize(message, field); ++i)
      Gather(*to.MutableRepeatedMessage(&message, field, i), depth - 1, all);
  }
}

std::string Edited(std::string text, Prng& prng) {
  const size_t at = prng.Below(text.size() + 1);
  if (prng.Below(3) == 0) {
    text.erase(at, 1 + prng.Below(8));
  } else if (prng.Below(2) == 0 || at == text.size()) {
    text.insert(at, Word(prng));
  } else {
    text[at] ^= static_cast<char>(1 << prng.Below(7));
  }
  return text;
}

}  // namespace

void Mutate(Message& message, Prng& prng) {
  constexpr int kDepth = 8;
  std::vector<Message*> all;
  Gather(message, kDepth, all);
  Message& where = *all[prng.Below(all.size())];
  const google::protobuf::Descriptor& type = *where.GetDescriptor();
  if (type.field_count() == 0) return;
  const FieldDescriptor* field =
      type.field(static_cast<int>(prng.Below(static_cast<uint64_t>(type.field_count()))));
  const Reflection& to = *where.GetReflection();
  if (field->is_repeated() && to.FieldSize(where, field) > 0 && prng.Below(2) == 0)
    return to.RemoveLast(&where, field);
  if (!field->is_repeated() && prng.Below(6) == 0) return to.ClearField(&where, field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !field->is_repeated() &&
      prng.Below(2) == 0) {
    return to.SetString(&where, field, Edited(to.GetString(where, field), prng));
  }
  Set(where, field, prng, 2);
}

void Fill(Message& message, Prng& prng, int depth) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    // Of a oneof the last that is set stays.
    const bool one_of = field->real_containing_oneof() != nullptr;
    if (prng.Below(one_of ? 2 : 4) == 0) continue;
    const uint64_t count = field->is_repeated() ? prng.Below(4) : 1;
    for (uint64_t k = 0; k < count; ++k) Set(message, field, prng, depth);
  }
}

}  // namespace phalanx::fuzz
