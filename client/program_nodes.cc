// Commands about nodes of a coordinator.
#include "client/commands.h"
#include "client/node_commands.h"
#include "client/program.h"

namespace phalanx::client {

void Program::AddNodes() {
  CLI::App* nodes = Add("nodes", "List nodes and who has their devices", [this](Io& io) {
    Connection connection(Server());
    return Nodes(connection, format(), io);
  });
  AddFormat(nodes);
  AddNoHeaders(nodes);
  const auto add = [this](const char* name, const char* description,
                          int (*command)(Connection&, const NodeMarkOptions&, Io&)) {
    CLI::App* app = Add(name, description, [this, command](Io& io) {
      Connection connection(Server());
      return command(
          connection,
          {.node = flags_.name, .reason = flags_.reason, .format = format(), .force = flags_.force},
          io);
    });
    app->add_option("NODE", flags_.name, "its name, as phalanx nodes lists it")->required();
    AddFormat(app);
    return app;
  };
  CLI::App* cordon = add("cordon", "Place nothing new on a node", Cordon);
  add("uncordon", "Let a node take jobs again", Uncordon);
  CLI::App* drain = add("drain", "Place nothing new on a node, and let jobs leave it", Drain);
  CLI::App* reserve = add("reserve", "Keep the devices of a node for jobs that lose one", Reserve);
  add("unreserve", "Let a node of the reserve take jobs of the queue again", Unreserve);
  for (CLI::App* app : {cordon, drain, reserve}) {
    app->add_option("--reason", flags_.reason, "why, for everybody who looks at the node")
        ->required()
        ->type_name("TEXT");
  }
  drain->add_flag("--force", flags_.force, "end jobs that cannot save their state");
}

}  // namespace phalanx::client
