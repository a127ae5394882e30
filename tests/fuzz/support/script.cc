#include "tests/fuzz/support/script.h"

#include <algorithm>
#include <set>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "tests/fuzz/support/messages.h"

namespace phalanx::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kStepBytesMax = 0xFFFF;
constexpr size_t kWordsMax = 10;

// Fields whose texts are asked for again.
bool IsName(const FieldDescriptor& field) {
  static const std::set<std::string> kNames = {"certificate",     "fetch_id", "id",    "name",
                                               "next_page_token", "node",     "place", "token"};
  return kNames.contains(field.name());
}

std::string Random(const Message* kind, Prng& prng) {
  if (kind == nullptr) return std::string(prng.Below(16), static_cast<char>(prng.Next()));
  const std::unique_ptr<Message> message(kind->New());
  Fill(*message, prng);
  return message->SerializeAsString();
}

void Change(std::string& bytes, const Message* kind, Prng& prng) {
  if (kind == nullptr) {
    if (bytes.empty()) return bytes.push_back(static_cast<char>(prng.Next()));
    bytes[prng.Below(bytes.size())] ^= static_cast<char>(1 << prng.Below(8));
    return;
  }
  const std::unique_ptr<Message> message(kind->New());
  message->ParsePartialFromString(bytes);
  for (uint64_t n = 1 + prng.Below(3); n > 0; --n) Mutate(*message, prng);
  bytes = message->SerializePartialAsString();
}

}  // namespace

std::vector<Step> ReadScript(absl::string_view bytes, size_t kinds) {
  std::vector<Step> steps;
  while (bytes.size() >= 3 && steps.size() < kStepsMax) {
    const auto at = [bytes](size_t i) {
      return static_cast<size_t>(static_cast<uint8_t>(bytes[i]));
    };
    const size_t kind = at(0) % kinds, size = at(1) | at(2) << 8;
    bytes.remove_prefix(3);
    steps.push_back({kind, std::string(bytes.substr(0, size))});
    bytes.remove_prefix(std::min(size, bytes.size()));
  }
  return steps;
}

std::string WriteScript(absl::Span<const Step> steps) {
  std::string bytes;
  for (const Step& step : steps) {
    const size_t size = std::min(step.bytes.size(), kStepBytesMax);
    bytes.push_back(static_cast<char>(step.kind));
    bytes.push_back(static_cast<char>(size & 0xFF));
    bytes.push_back(static_cast<char>(size >> 8));
    bytes.append(step.bytes, 0, size);
  }
  return bytes;
}

std::string MutatedScript(absl::string_view bytes, absl::Span<const Message* const> kinds,
                          Prng& prng) {
  std::vector<Step> steps = ReadScript(bytes, kinds.size());
  const auto any = [&] {
    return steps.begin() + static_cast<std::ptrdiff_t>(prng.Below(steps.size()));
  };
  switch (steps.empty() ? 0 : prng.Below(8)) {
    case 0: {
      const size_t kind = prng.Below(kinds.size());
      const auto at = steps.begin() + static_cast<std::ptrdiff_t>(prng.Below(steps.size() + 1));
      steps.insert(at, {kind, Random(kinds[kind], prng)});
      break;
    }
    case 1:
      steps.erase(any());
      break;
    case 2: {
      const Step again = *any();
      steps.insert(any(), again);
      break;
    }
    case 3:
      std::iter_swap(any(), any());
      break;
    default: {
      Step& step = *any();
      Change(step.bytes, kinds[step.kind], prng);
    }
  }
  return WriteScript(steps);
}

void Answers::Add(std::string word) {
  if (word.empty()) return;
  std::erase(words_, word);
  words_.push_front(std::move(word));
  if (words_.size() > kWordsMax) words_.pop_back();
}

void Answers::Learn(const Message& answer) {
  const Reflection& of = *answer.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  of.ListFields(answer, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !field->is_repeated()) {
      if (IsName(*field)) Add(of.GetString(answer, field));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field->is_repeated()) {
      for (int i = 0; i < of.FieldSize(answer, field); ++i)
        Learn(of.GetRepeatedMessage(answer, field, i));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Learn(of.GetMessage(answer, field));
    }
  }
}

void Answers::Recall(Message& message) const {
  if (words_.empty()) return;
  const Reflection& to = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  to.ListFields(message, &fields);
  const auto word = [this](const std::string& text) {
    const bool stands = text.size() == 2 && text[0] == '$' && text[1] >= '0' && text[1] <= '9';
    return stands ? words_[static_cast<size_t>(text[1] - '0') % words_.size()] : text;
  };
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? to.FieldSize(message, field) : 0;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) Recall(*to.MutableMessage(&message, field));
      for (int i = 0; i < count; ++i) Recall(*to.MutableRepeatedMessage(&message, field, i));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      if (!field->is_repeated()) to.SetString(&message, field, word(to.GetString(message, field)));
      for (int i = 0; i < count; ++i)
        to.SetRepeatedString(&message, field, i, word(to.GetRepeatedString(message, field, i)));
    }
  }
}

}  // namespace phalanx::fuzz
