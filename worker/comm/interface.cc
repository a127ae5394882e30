#include "worker/comm/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

namespace phalanx::comm {
namespace {

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

bool IsSameHost(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

// Calls found(interface) for the one that has `address`.
template <typename Found>
std::string Find(const std::string& address, Found found_interface) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  ifaddrs* listed = nullptr;
  if (getifaddrs(&listed) != 0) return "";
  const Interfaces interfaces(listed, &freeifaddrs);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    for (const ifaddrs* interface = listed; interface != nullptr; interface = interface->ifa_next) {
      if (interface->ifa_addr != nullptr && IsSameHost(*interface->ifa_addr, *one->ai_addr))
        return found_interface(*interface);
    }
  }
  return "";
}

}  // namespace

std::string InterfaceOf(const std::string& address) {
  return Find(address, [](const ifaddrs& interface) { return std::string(interface.ifa_name); });
}

std::string NcclInterfaceOf(const std::string& address) {
  const std::string name = Find(address, [](const ifaddrs& interface) {
    return (interface.ifa_flags & IFF_LOOPBACK) != 0 ? "" : std::string(interface.ifa_name);
  });
  return name.empty() ? "" : "=" + WithoutLabel(name);
}

std::string WithoutLabel(const std::string& name) { return name.substr(0, name.find(':')); }

}  // namespace phalanx::comm
