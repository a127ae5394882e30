#include "tests/support/etcd.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "coordinator/etcd/client.h"
#include "tests/support/files.h"

namespace phalanx::support {
namespace {

constexpr int kPortAttempts = 5;

std::string Program() {
  const char* path = std::getenv("PATH");
  std::vector<std::string> folders = absl::StrSplit(path == nullptr ? "" : path, ':');
  const char* dependencies = std::getenv("PHALANX_DEPS_DIR");
  const char* home = std::getenv("HOME");
  folders.push_back(absl::StrCat(
      dependencies != nullptr ? std::string(dependencies)
                              : absl::StrCat(home == nullptr ? "" : home, "/.cache/phalanx/deps"),
      "/etcd"));
  for (const std::string& folder : folders) {
    const std::string program = folder + "/etcd";
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

// A port of loopback that was free a moment ago, below those that the kernel gives to connections:
// a server that is killed finds it free again, and who calls meanwhile cannot be given it himself.
std::string FreeAddress() {
  constexpr int kFirst = 20'000, kLast = 32'000;
  std::random_device device;
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    const int port = std::uniform_int_distribution<int>(kFirst, kLast)(device);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool is_free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (is_free) return absl::StrCat("127.0.0.1:", port);
  }
  Require(false, "no port of loopback is free");
  return "";
}

}  // namespace

std::string EtcdMissing() {
  return Program().empty() ? "etcd is not installed: scripts/setup brings it" : "";
}

EtcdServer::EtcdServer(EtcdTls tls) : tls_(std::move(tls)), folder_(MakeFolder("etcd")) {
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    address_ = FreeAddress();
    peers_ = FreeAddress();
    std::filesystem::remove_all(folder_ + "/data");
    if (TryStart()) return;
  }
  Require(false, absl::StrCat("etcd does not start: ", ReadText(folder_ + "/log")));
}

void EtcdServer::Start() {
  Require(TryStart(), absl::StrCat("etcd does not start again: ", ReadText(folder_ + "/log")));
}

bool EtcdServer::TryStart() {
  const std::string clients = absl::StrCat(tls_.server.on() ? "https://" : "http://", address_);
  const std::string peers = "http://" + peers_, log = folder_ + "/log";
  std::vector<std::string> argv = {Program(),
                                   "--name",
                                   "one",
                                   "--data-dir",
                                   folder_ + "/data",
                                   "--listen-client-urls",
                                   clients,
                                   "--advertise-client-urls",
                                   clients,
                                   "--listen-peer-urls",
                                   peers,
                                   "--initial-advertise-peer-urls",
                                   peers,
                                   "--initial-cluster",
                                   "one=" + peers,
                                   "--logger",
                                   "zap",
                                   "--log-level",
                                   "error"};
  if (tls_.server.on()) {
    argv.insert(argv.end(), {"--client-cert-auth", "--trusted-ca-file", tls_.server.ca,
                             "--cert-file", tls_.server.certificate, "--key-file", tls_.server.key,
                             "--enable-grpc-gateway=false"});
  }
  process_ = std::make_unique<Process>(argv, NewMark(), log, log);
  coordinator::EtcdClient client({.members = {address_}, .tls = tls_.client});
  const absl::Time deadline = absl::Now() + kPatience;
  etcdserverpb::RangeRequest request;
  request.set_key("any");
  while (!process_->watch().HasEnded()) {
    if (client.Range(request).ok()) return true;
    Require(absl::Now() < deadline, absl::StrCat("etcd does not answer: ", ReadText(log)));
  }
  return false;
}

void EtcdServer::Kill() {
  process_->Signal(SIGKILL);
  process_->Wait();
}

std::string EtcdServer::NewPlace() {
  return absl::StrCat("etcd://", address_, "/test/", ++places_);
}

EtcdServer& SharedEtcd() {
  static EtcdServer server;
  return server;
}

}  // namespace phalanx::support
