// A coordinator whose every answer tries to take over the terminal that it is shown on.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "client/doctor.h"
#include "client/format.h"
#include "client/incidents.h"
#include "client/list.h"
#include "client/logs.h"
#include "client/node_commands.h"
#include "client/node_list.h"
#include "client/top.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::testing::HasSubstr;
using ::testing::Not;

// Clears the screen, ends the line, and turns the direction of writing.
constexpr char kEvil[] = "\x1b[2J\n\u202E";
constexpr int kDepthMax = 8;  // of messages within messages
// So many members has the largest oneof of an answer, at most.
constexpr int kVariants = 12;
// The variant whose pages go on, each like the one before; the others have one page.
constexpr int kPagesVariant = kVariants;

// Fills `message` to the last field. `variant`: which member of each oneof and which value of each
// enum.
void Fill(Message& message, int variant, int depth = 0);

void FillField(Message& message, const FieldDescriptor& field, int variant, int depth) {
  const Reflection& reflection = *message.GetReflection();
  const bool many = field.is_repeated();
  const auto put = [&](auto set, auto add, auto value) {
    many ? (reflection.*add)(&message, &field, value) : (reflection.*set)(&message, &field, value);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      if (field.name() != "next_page_token" || variant == kPagesVariant)
        put(&Reflection::SetString, &Reflection::AddString, std::string(kEvil));
      return;
    case FieldDescriptor::CPPTYPE_BOOL:
      if (field.name() == "more") {
        return put(&Reflection::SetBool, &Reflection::AddBool, variant == kPagesVariant);
      }
      return put(&Reflection::SetBool, &Reflection::AddBool, variant % 2 == 0);
    case FieldDescriptor::CPPTYPE_INT32:
      return put(&Reflection::SetInt32, &Reflection::AddInt32, 1);
    case FieldDescriptor::CPPTYPE_INT64:
      return put(&Reflection::SetInt64, &Reflection::AddInt64, 1);
    case FieldDescriptor::CPPTYPE_UINT32:
      return put(&Reflection::SetUInt32, &Reflection::AddUInt32, 1u);
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(&Reflection::SetUInt64, &Reflection::AddUInt64, uint64_t{1});
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(&Reflection::SetFloat, &Reflection::AddFloat, 1.5f);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return put(&Reflection::SetDouble, &Reflection::AddDouble, 1.5);
    case FieldDescriptor::CPPTYPE_ENUM: {
      int value = field.enum_type()->value(variant % field.enum_type()->value_count())->number();
      // A watch of a job that has not ended goes on.
      if (field.enum_type() == v1::JobPhase_descriptor())
        value = variant % 2 == 0 ? v1::JOB_PHASE_FAILED : v1::JOB_PHASE_SUCCEEDED;
      return put(&Reflection::SetEnumValue, &Reflection::AddEnumValue, value);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth == kDepthMax) return;
      return Fill(many ? *reflection.AddMessage(&message, &field)
                       : *reflection.MutableMessage(&message, &field),
                  variant, depth + 1);
  }
}

void Fill(Message& message, int variant, int depth) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const auto* const one = field.real_containing_oneof();
    if (one != nullptr && one->field(variant % one->field_count()) != &field) continue;
    FillField(message, field, variant, depth);
  }
}

class HostileAnswersTest : public ::testing::Test {
 protected:
  template <typename Request, typename Response>
  void Answer(std::function<grpc::Status(const Request&, Response*)>& member) {
    member = [this](const Request&, Response* response) {
      if (!error_.ok()) return error_;
      Fill(*response, variant_);
      return grpc::Status::OK;
    };
  }
  HostileAnswersTest() {
    Answer(server_.submit);
    Answer(server_.get);
    Answer(server_.list);
    Answer(server_.cancel);
    Answer(server_.suspend);
    Answer(server_.resume);
    Answer(server_.remove);
    Answer(server_.explain);
    Answer(server_.events);
    Answer(server_.incidents);
    Answer(server_.nodes);
    Answer(server_.cordon);
    Answer(server_.uncordon);
    Answer(server_.drain);
    Answer(server_.reserve);
    Answer(server_.unreserve);
    Answer(server_.inject);
    server_.watch = [this](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer) {
      return Write(*writer);
    };
    server_.logs = [this](const v1::GetLogsRequest&,
                          grpc::ServerWriter<v1::GetLogsResponse>* writer) {
      return Write(*writer);
    };
  }
  template <typename Response>
  grpc::Status Write(grpc::ServerWriter<Response>& writer) {
    if (!error_.ok()) return error_;
    Response response;
    Fill(response, variant_);
    writer.Write(response);
    return grpc::Status::OK;
  }

  // Runs every command in every format, and looks at what it wrote.
  void RunAll(const std::string& job) {
    using Command = std::function<int(Format, Io&)>;
    const NodeMarkOptions node{.node = "a", .reason = "new fan"};
    const auto marked = [&node](Format format) {
      NodeMarkOptions options = node;
      options.format = format;
      return options;
    };
    const std::vector<std::pair<const char*, Command>> commands = {
        {"list", [&](Format format,
                     Io& io) { return List(connection_, {.format = format}, stopper_, io); }},
        {"get", [&](Format format, Io& io) { return Get(connection_, job, format, io); }},
        {"describe", [&](Format format, Io& io) { return Describe(connection_, job, format, io); }},
        {"events", [&](Format format,
                       Io& io) { return Events(connection_, {.job = job, .format = format}, io); }},
        {"events of a type that there is not",
         [&](Format format, Io& io) {
           return Events(connection_, {.job = job, .format = format, .types = {"Other"}}, io);
         }},
        {"nodes", [&](Format format, Io& io) { return Nodes(connection_, format, io); }},
        {"describe node",
         [&](Format format, Io& io) { return DescribeNode(connection_, kEvil, format, io); }},
        {"describe node that there is not",
         [&](Format format, Io& io) { return DescribeNode(connection_, "a", format, io); }},
        {"incidents list",
         [&](Format format, Io& io) { return IncidentsList(connection_, job, format, io); }},
        {"incidents show",
         [&](Format format, Io& io) {
           return IncidentsShow(connection_, {.job = job, .number = 1, .format = format}, io);
         }},
        {"top",
         [&](Format format, Io& io) {
           Stopper once;
           once.Stop();
           return Top(connection_, {.format = format, .terminal = true}, once, io);
         }},
        {"why", [&](Format format, Io& io) { return Why(connection_, job, format, io); }},
        {"doctor",
         [&](Format format, Io& io) {
           // It looks at this machine, too, which takes its time.
           if (variant_ > 1) return 0;
           return Doctor(connection_, {.version = "1", .format = format}, io);
         }},
        {"watch", [&](Format, Io& io) { return Watch(connection_, job, stopper_, io); }},
        {"logs", [&](Format, Io& io) { return Logs(connection_, {.job = job}, stopper_, io); }},
        {"logs of an epoch",
         [&](Format, Io& io) { return Logs(connection_, {.job = job, .epoch = 9}, stopper_, io); }},
        {"logs with times",
         [&](Format, Io& io) {
           return Logs(connection_, {.job = job, .timestamps = true}, stopper_, io);
         }},
        {"cancel", [&](Format format,
                       Io& io) { return Cancel(connection_, {.job = job, .format = format}, io); }},
        {"suspend", [&](Format format, Io& io) { return Suspend(connection_, job, format, io); }},
        {"resume", [&](Format format, Io& io) { return Resume(connection_, job, format, io); }},
        {"delete", [&](Format format, Io& io) { return Delete(connection_, job, format, io); }},
        {"rerun",
         [&](Format format, Io& io) {
           return Rerun(connection_, {.job = job, .format = format}, stopper_, io);
         }},
        {"inject",
         [&](Format format, Io& io) {
           return Inject(connection_,
                         {.job = job, .fault = {.rank = "1", .fault = "kill"}, .format = format},
                         io);
         }},
        {"cordon", [&](Format format, Io& io) { return Cordon(connection_, marked(format), io); }},
        {"uncordon",
         [&](Format format, Io& io) { return Uncordon(connection_, marked(format), io); }},
        {"drain", [&](Format format, Io& io) { return Drain(connection_, marked(format), io); }},
        {"reserve",
         [&](Format format, Io& io) { return Reserve(connection_, marked(format), io); }},
        {"unreserve",
         [&](Format format, Io& io) { return Unreserve(connection_, marked(format), io); }}};
    for (const auto& [name, command] : commands) {
      for (const Format format :
           {Format::kTable, Format::kWide, Format::kJson, Format::kYaml, Format::kName}) {
        SCOPED_TRACE(testing::Message() << name << ", format " << static_cast<int>(format)
                                        << ", variant " << variant_);
        Captured captured;
        command(format, captured.io);
        for (const std::string& text : {captured.out.str(), captured.talk.str()}) {
          // What top draws with is its own.
          EXPECT_THAT(text, Not(HasSubstr("\x1b[2J")));
          EXPECT_THAT(text, Not(HasSubstr("\u202E")));
        }
        wrote_ += captured.out.str().size() + captured.talk.str().size();
      }
    }
  }

  FakeServer server_;
  Connection connection_ = server_.Connect();
  Stopper stopper_;
  int variant_ = 0;
  grpc::Status error_;
  size_t wrote_ = 0;
};

TEST_F(HostileAnswersTest, NoFieldOfAnyAnswer_ReachesTheTerminalAsItIs) {
  for (variant_ = 0; variant_ < kVariants; ++variant_) RunAll("demo");
  EXPECT_GT(wrote_, 10'000u);
}

// Such as a node's reason: who reads a table takes each line for a row.
TEST(HostileCellTest, LineEndInIt_BeginsNoRow) {
  Table table({"NAME", "STATE", "MESSAGE"});
  table.Add({"a", "cordoned: fan\nb  Ready", "killed\nb  Ready"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "NAME  STATE                    MESSAGE\n"
            "a     cordoned: fan\\nb  Ready  killed\n"
            "    b  Ready\n");
}

TEST_F(HostileAnswersTest, PagesThatGoOnForEver_EndWithAnError) {
  variant_ = kPagesVariant;
  RunAll("demo");
  EXPECT_EQ(ListNodes(connection_, false).status().code(), absl::StatusCode::kDataLoss);
  Captured captured;
  EXPECT_NE(List(connection_, {}, stopper_, captured.io), 0);
  EXPECT_THAT(captured.talk.str(), HasSubstr("do not go on after 2 jobs"));
  EXPECT_NE(Events(connection_, {.job = "demo"}, captured.io), 0);
  EXPECT_THAT(captured.talk.str(), HasSubstr("do not go on after 2 events"));
}

TEST_F(HostileAnswersTest, NoErrorAndNoneOfItsDetails_DoesEither) {
  google::rpc::BadRequest bad;
  Fill(bad, 0);
  google::rpc::ErrorInfo info;
  Fill(info, 0);
  for (const grpc::StatusCode code :
       {grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::NOT_FOUND,
        grpc::StatusCode::PERMISSION_DENIED, grpc::StatusCode::FAILED_PRECONDITION,
        grpc::StatusCode::INTERNAL}) {
    for (const Message* detail : std::vector<const Message*>{&bad, &info}) {
      error_ = WithDetails(code, *detail, kEvil);
      RunAll("demo");
      variant_ = 2;
    }
  }
  EXPECT_GT(wrote_, 10'000u);
}

}  // namespace
}  // namespace phalanx::client
