#include "tests/rpc/older/protocol.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/rpc/older/recording.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::older {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::UnknownFieldSet;

bool ReadsAlike(const FieldDescriptor& a, const FieldDescriptor& b) {
  return a.name() == b.name() && a.type() == b.type() && a.is_repeated() == b.is_repeated();
}

// Of what writers of `message` may say, what readers with the types of `pool` do not take so.
void AddUnread(const DescriptorPool& pool, const Descriptor& message, FieldNames& seen,
               FieldNames& unread) {
  if (!seen.insert(message.full_name()).second) return;
  const Descriptor* reader = pool.FindMessageTypeByName(message.full_name());
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const FieldDescriptor* known =
        reader == nullptr ? nullptr : reader->FindFieldByNumber(field.number());
    if (known == nullptr || !ReadsAlike(*known, field)) {
      unread.insert(field.full_name());
    } else if (field.message_type() != nullptr) {
      AddUnread(pool, *field.message_type(), seen, unread);
    } else if (field.enum_type() != nullptr) {
      for (int v = 0; v < field.enum_type()->value_count(); ++v) {
        const auto* value =
            known->enum_type()->FindValueByNumber(field.enum_type()->value(v)->number());
        if (value == nullptr) unread.insert(field.enum_type()->value(v)->full_name());
      }
    }
  }
}

FieldNames Unread(const DescriptorPool& writer, const DescriptorPool& reader,
                  const std::string& type) {
  const Descriptor* message = writer.FindMessageTypeByName(type);
  support::Require(message != nullptr, absl::StrCat("there is no ", type));
  FieldNames seen, unread;
  AddUnread(reader, *message, seen, unread);
  return unread;
}

void AddUnknown(const Message& message, FieldNames& unknown) {
  const UnknownFieldSet& fields = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    unknown.insert(
        absl::StrCat(message.GetDescriptor()->full_name(), ": ", fields.field(i).number()));
  }
  std::vector<const FieldDescriptor*> present;
  message.GetReflection()->ListFields(message, &present);
  for (const FieldDescriptor* field : present) {
    if (field->message_type() == nullptr) continue;
    if (!field->is_repeated()) {
      AddUnknown(message.GetReflection()->GetMessage(message, field), unknown);
      continue;
    }
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i)
      AddUnknown(message.GetReflection()->GetRepeatedMessage(message, field, i), unknown);
  }
}

}  // namespace

Protocol::Protocol() : factory_(&pool_) {
  google::protobuf::FileDescriptorSet files;
  support::Require(files.ParseFromString(support::ReadFile(PathOf("protocol.binpb"))),
                   "protocol.binpb holds no descriptors");
  for (const auto& file : files.file())
    support::Require(pool_.BuildFile(file) != nullptr, file.name());
}

FieldNames Protocol::UnreadByOlder(const std::string& type) const {
  return Unread(*DescriptorPool::generated_pool(), pool_, type);
}

FieldNames Protocol::UnreadByThis(const std::string& type) const {
  return Unread(pool_, *DescriptorPool::generated_pool(), type);
}

FieldNames Protocol::UnknownIn(const std::string& type, const std::string& bytes) {
  const Descriptor* descriptor = pool_.FindMessageTypeByName(type);
  support::Require(descriptor != nullptr, absl::StrCat("it knows no ", type));
  const std::unique_ptr<Message> message(factory_.GetPrototype(descriptor)->New());
  support::Require(message->ParseFromString(bytes), absl::StrCat("it cannot read a ", type));
  FieldNames unknown;
  AddUnknown(*message, unknown);
  return unknown;
}

}  // namespace phalanx::older
