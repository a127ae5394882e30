// tests/support/etcd.h: a real etcd on loopback, in a temporary folder. What goes wrong throws, as
// in tests/support/process.h.
#pragma once

#include <memory>
#include <string>

#include "tests/support/process.h"
#include "transport/tls.h"

namespace phalanx::support {

// Why tests of it are skipped; empty: it is installed. On the PATH, or where scripts/setup puts it.
std::string EtcdMissing();

// Certificates of etcd, which asks its callers for theirs, and of those who call it here.
struct EtcdTls {
  transport::TlsFiles server, client;
};

// One member, which is a whole cluster. Made on the main thread.
class EtcdServer {
 public:
  explicit EtcdServer(EtcdTls tls = {});
  // Of one that has ended: on the same port and the same folder.
  void Start();
  // kill -9, and reaps.
  void Kill();

  const std::string& address() const { return address_; }  // HOST:PORT
  Process& process() { return *process_; }
  // A place for a store that no other has, as the coordinator's --store.
  std::string NewPlace();

 private:
  // False: it ended, for another program has taken its port.
  bool TryStart();

  const EtcdTls tls_;
  const std::string folder_;
  std::string address_, peers_;
  int places_ = 0;
  std::unique_ptr<Process> process_;
};

// Of this program, started by the first call.
EtcdServer& SharedEtcd();

}  // namespace phalanx::support
