// tests/rpc/older/protocol.h: what the release before knows of the session's messages, from its own
// descriptors.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>

#include <set>
#include <string>

namespace phalanx::older {

// "phalanx.v1.Assign.fence"; values of enumerations, too.
using FieldNames = std::set<std::string>;

// Not thread-safe.
class Protocol {
 public:
  Protocol();

  // What messages of that type, and all that they are made of, may hold as this release writes
  // them, and the one before does not know or reads otherwise.
  FieldNames UnreadByOlder(const std::string& type) const;
  // The other way round.
  FieldNames UnreadByThis(const std::string& type) const;
  // Fields of a message of that type as it came that the release before does not know, by number:
  // "phalanx.v1.Assign: 15".
  FieldNames UnknownIn(const std::string& type, const std::string& bytes);

 private:
  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_;
};

}  // namespace phalanx::older
