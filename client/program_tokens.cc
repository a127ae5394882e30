// Commands about the tokens that nodes join with.
#include <string>

#include "client/program.h"
#include "client/token_commands.h"
#include "core/job/scalar.h"

namespace phalanx::client {

void Program::AddTokens() {
  CLI::App* tokens = AddGroup("token", "Tokens that nodes join with; for operators");
  CLI::App* create = AddTo(*tokens, "create", "Make a token; prints it, once", [this](Io& io) {
    Connection connection(Server());
    return TokenCreate(connection,
                       {.node = flags_.name,
                        .ttl = job::ParseDuration(flags_.ttl).value_or(absl::Hours(1)),
                        .uses = flags_.uses,
                        .format = format()},
                       io);
  });
  create->add_option("--node", flags_.name, "only for this node; default: any that is new")
      ->type_name("NODE");
  create
      ->add_option("--ttl", flags_.ttl, "until it expires, such as 30m, at most 720h; default: 1h")
      ->check([](const std::string& text) { return FlagFault(text, TtlFault(text)); })
      ->type_name("DURATION");
  create->add_option("--uses", flags_.uses, "how often the node may join; more than 1 with --node")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000, "INT in [1 - 1000]"));
  AddFormat(create);
  CLI::App* list =
      AddTo(*tokens, "list", "List tokens and who has joined with them", [this](Io& io) {
        Connection connection(Server());
        return TokenList(connection, format(), io);
      });
  AddFormat(list);
  AddNoHeaders(list);
  CLI::App* revoke =
      AddTo(*tokens, "revoke", "Take a token back, and every certificate that came of it",
            [this](Io& io) {
              Connection connection(Server());
              return TokenRevoke(connection, flags_.name, format(), io);
            });
  revoke->add_option("ID", flags_.name, "as phalanx token list has it")->required();
  AddFormat(revoke);
}

}  // namespace phalanx::client
