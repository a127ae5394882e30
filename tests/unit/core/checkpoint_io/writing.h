// tests/unit/core/checkpoint_io/writing.h: a folder that checkpoints of one job are published in,
// and processes whose system calls fail.
#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint_io/checkpoints.h"
#include "gtest/gtest.h"
#include "tests/unit/core/checkpoint_io/drafts.h"
#include "tests/unit/core/checkpoint_io/written.h"

namespace phalanx::checkpoint {

class WritingTest : public testing::Test {
 protected:
  absl::Status Verify(const std::string& path) const {
    const absl::StatusOr<Manifest> manifest = ReadManifestOf(path);
    return manifest.ok() ? VerifyCheckpoint(path, *manifest, {}) : manifest.status();
  }
  std::set<std::string> NamesIn(const std::string& folder) const {
    std::set<std::string> names;
    if (!std::filesystem::exists(folder)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  void PublishSteps(const std::vector<int64_t>& steps) const {
    for (const int64_t step : steps) {
      const auto published = drafts_.WriteAndPublish({.step = step, .epoch = 3});
      ASSERT_TRUE(published.ok()) << published.status();
    }
  }

  const job::JobSpec spec_ = TwoModules();
  const plan::Plan plan_ = PlanOf(spec_);
  const std::string folder_ = support::MakeFolder("checkpoints");
  const Drafts drafts_{plan_, folder_};
  const CheckpointName name_{.step = 50, .epoch = 3};
};

// What a process of its own, which may change what it is, says at its end.
inline std::string SaidByChild(const std::function<std::string()>& say) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string said = say();
    _exit(write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string said(4096, '\0');
  const ssize_t count = read(ends[0], said.data(), said.size());
  close(ends[0]);
  said.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
  int status = 0;
  waitpid(child, &status, 0);
  return said;
}

// As file systems of networks do: the system call fails so from now on.
inline bool Refuse(uint32_t call, uint32_t error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = std::size(code), .filter = code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace phalanx::checkpoint
