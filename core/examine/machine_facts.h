// core/examine/machine_facts.h: what a process can find out about the machine that it runs on, as
// the user that it runs as.
//
// Only reads, but for a small file that it writes into folders that are to be written and removes,
// and their marks (Folders).
// Asks the kernel and the libraries themselves, so nothing has to run there. A driver, a mount or a
// name server that does not answer holds it up for as long.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace phalanx::examine {

// A library of the driver or of NVIDIA's, as the loader of this program finds it.
struct LibraryFacts {
  bool found = false;
  std::string error;    // why it cannot be used; empty: it can
  std::string version;  // empty: it does not say
};

struct FolderFacts {
  std::string path;
  bool is_written = true;  // jobs write in it too; else they read there alone
  std::string error;       // what a rank could not do in it; empty: nothing
  bool full = false;       // could not, since there is no room
  // It is there, and is not for this user to write in: folders below it may be.
  bool refused = false;
  bool on_network = false;  // its file system is one that other machines can mount too
  int64_t free_bytes = 0;
  // 16 hexadecimal digits that are the folder's own, on whatever machine it is mounted; empty: it
  // has none, or nobody asked.
  std::string mark;
};

// A limit of this process; kUnlimited: none.
inline constexpr int64_t kUnlimited = INT64_MAX;
struct LimitFacts {
  int64_t open_files = 0;    // hard: daemons raise their own to it
  int64_t locked_bytes = 0;  // soft
  int64_t file_bytes = 0;    // soft
  int64_t processes = 0;     // soft; threads count
};

struct MachineFacts {
  int32_t gpu_files = 0;  // /dev/nvidia0, 1, ...: a container may have some, by the host's numbers
  LibraryFacts driver;    // libnvidia-ml.so.1
  int32_t gpus = 0;       // that the driver knows
  LibraryFacts nccl;      // libnccl.so.2; not looked for where there are no GPUs
  // The kernel keeps its clock with a server's. nullopt: it does not say.
  std::optional<bool> clock_synchronised;
  int64_t shared_memory_bytes = 0;  // size of /dev/shm; 0: there is none
  LimitFacts limits;
  int32_t ports_first = 0, ports_last = 0;  // that ranks get for their connections; 0: not known
  std::string host;                         // name of this machine
  std::string host_error;                   // why its name gives no address; empty: it does
  bool host_is_loopback = false;            // its name gives 127.x.x.x or ::1 alone
  std::vector<FolderFacts> folders;
  std::optional<FolderFacts> state;  // nullopt: none was asked for
};

struct Folders {
  // That jobs use.
  std::vector<std::string> read;  // alone
  std::vector<std::string> write;
  std::string state;  // that a worker uses; empty: there is none
  // Those to be written get a mark, where they have none: a file ".phalanx-folder" that stays, of
  // whichever machine comes first. So machines that mount the same folder know it.
  bool marked = false;
};
// Thread-safe.
MachineFacts ReadMachine(const Folders& folders);

}  // namespace phalanx::examine
