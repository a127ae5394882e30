// The ports that programs listen on are those of the table in docs/security.md.
#include <arpa/inet.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"

namespace phalanx::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// "0100007F:1F90" of /proc/net/tcp is 127.0.0.1:8080; one of IPv6 stays as it is.
std::string AddressOf(const std::string& words) {
  const std::vector<std::string> parts = absl::StrSplit(words, ':');
  in_addr address{};
  uint32_t port = 0;
  if (parts.size() != 2 || parts[0].size() != 8 ||
      !absl::SimpleHexAtoi(parts[0], &address.s_addr) || !absl::SimpleHexAtoi(parts[1], &port)) {
    return words;
  }
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return absl::StrCat(text, ":", port);
}

// Addresses that the process listens at. Empty of one that has ended.
std::vector<std::string> ListeningOf(pid_t pid) {
  std::set<std::string> sockets;
  std::error_code error;
  for (std::filesystem::directory_iterator file(absl::StrCat("/proc/", pid, "/fd"), error), end;
       !error && file != end; file.increment(error)) {
    std::error_code gone;
    sockets.insert(std::filesystem::read_symlink(file->path(), gone).string());
  }
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::string text = support::ReadText(table);
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      const bool listens = words.size() > 9 && words[3] == "0A";
      if (listens && sockets.contains(absl::StrCat("socket:[", words[9], "]"))) {
        found.push_back(AddressOf(words[1]));
      }
    }
  }
  return found;
}

TEST(PortsTest, ProgramsListenAtThoseOfTheTable_AndAtNoOther) {
  const std::string table = support::ReadFile(tests::SourceDir() + "/docs/security.md");
  for (const char* row : {"| the coordinator's `--listen` |", "| the coordinator's `--http` |",
                          "| a worker's `--metrics`, where it has one |",
                          "| a rank on CPU, one that the kernel gives, at the worker's "}) {
    EXPECT_THAT(table, HasSubstr(row));
  }
  const DataFolder data = MakeData();
  const support::Authority authority;
  const transport::TlsFiles port = authority.Node("here");
  std::vector<std::string> worker_flags = TlsFlags(authority.Worker("here"));
  worker_flags.insert(
      worker_flags.end(),
      {"--write-folder", data.path, "--metrics", "127.0.0.1:0", "--metrics-certificate",
       port.certificate, "--metrics-key", port.key, "--tls-revoked", authority.revoked()});
  Cluster cluster({.devices = 2,
                   .coordinator_flags = TlsFlags(authority.Coordinator()),
                   .worker_flags = worker_flags,
                   .tls = authority.User("olga", "operator")});
  const pid_t coordinator = cluster.coordinator().pid(), worker = cluster.worker().pid();
  cluster.Submit(Document(data, {.steps = kForEver}));
  // While ranks connect each has one at the worker's --address, and none when they have.
  for (v1::JobStatus job; job.last_step().step() < 1; job = cluster.Get(1)) {
    ASSERT_FALSE(IsTerminal(job.phase())) << job.reason();
    for (const auto& [rank, watch] : cluster.Ranks(1)) {
      const std::vector<std::string> at = ListeningOf(watch.pid());
      EXPECT_LE(at.size(), 1u) << ::testing::PrintToString(at);
      for (const std::string& address : at) EXPECT_THAT(address, StartsWith("127.0.0.1:"));
    }
  }
  EXPECT_THAT(ListeningOf(coordinator), UnorderedElementsAre(cluster.grpc(), cluster.http()));
  const std::vector<std::string> of_worker = ListeningOf(worker);
  ASSERT_THAT(of_worker, ElementsAre(StartsWith("127.0.0.1:")));
  EXPECT_THAT(cluster.WorkerLog(), HasSubstr("metrics at " + of_worker[0] + "\n"));
  int others = 0;
  for (const pid_t pid : cluster.Processes()) {
    if (pid == coordinator || pid == worker) continue;
    ++others;
    EXPECT_THAT(ListeningOf(pid), IsEmpty()) << pid;
  }
  EXPECT_GE(others, 2) << "ranks";
}

}  // namespace
}  // namespace phalanx::e2e
