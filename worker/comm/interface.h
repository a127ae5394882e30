// worker/comm/interface.h: network interfaces by their addresses.
#pragma once

#include <string>

namespace phalanx::comm {

// Name of the interface of this machine that has `address`: an IPv4 address, an IPv6 address
// without brackets, or a name, of which the first address counts that an interface has. Empty: none
// has it. Thread-safe.
std::string InterfaceOf(const std::string& address);

// What NCCL_SOCKET_IFNAME is to be for ranks that others reach at `address`: empty where NCCL is to
// choose, for no interface has it, or only the loopback one, which no other node reaches. NCCL
// takes what follows a colon for a port: labels of addresses ("eth0:1") are left off. Thread-safe.
std::string NcclInterfaceOf(const std::string& address);
// Of a label of an address ("eth0:1"), or of an interface itself.
std::string WithoutLabel(const std::string& name);

}  // namespace phalanx::comm
