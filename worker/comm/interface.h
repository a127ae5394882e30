// worker/comm/interface.h: network interfaces by their addresses.
#pragma once

#include <string>

namespace phalanx::comm {

// Name of the interface of this machine that has `address`: an IPv4 address, an IPv6 address
// without brackets, or a name, of which the first address counts that an interface has. Empty: none
// has it. Thread-safe.
std::string InterfaceOf(const std::string& address);

}  // namespace phalanx::comm
