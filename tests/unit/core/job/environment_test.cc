// What a job may put into the environment of its ranks, and how it names secrets.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/job/job_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

std::string Document(const std::string& fields) {
  return With("steps: 300", absl::StrCat("steps: 300\n  ", fields));
}

TEST(EnvironmentTest, VariablesAndSecrets_AreReadAndWritten) {
  const JobSpec spec =
      Right(Document("env: {NCCL_DEBUG: INFO, _A1: \"\"}\n  secrets: {TOKEN: store.token-1}"));
  EXPECT_THAT(spec.env, ElementsAre(Pair("NCCL_DEBUG", "INFO"), Pair("_A1", "")));
  EXPECT_THAT(spec.secrets, ElementsAre(Pair("TOKEN", "store.token-1")));
  const JobSpec again = Right(wire::EmitYaml(WriteJobSpec(spec)));
  EXPECT_EQ(again.env, spec.env);
  EXPECT_EQ(again.secrets, spec.secrets);
}

TEST(EnvironmentTest, NamesThatWouldBreakARank_AreRefused) {
  constexpr char kOfCode[] =
      "LD_PRELOAD LD_LIBRARY_PATH GLIBC_TUNABLES OPENSSL_CONF CUDA_INJECTION64_PATH "
      "NCCL_NET_PLUGIN NCCL_CONF_FILE IBV_DRIVERS RDMAV_DRIVERS OMP_TOOL_LIBRARIES "
      "INTEL_LIBITTNOTIFY64 INTEL_JIT_PROFILER64 NVSHMEM_BOOTSTRAP_PLUGIN PATH "
      "TORCH_ADDR2LINE_BINARY TORCH_SYMBOLIZE_MODE";
  constexpr char kOfFiles[] =
      "NCCL_DEBUG_FILE NCCL_TOPO_DUMP_FILE CUDNN_LOGDEST_DBG CUBLASLT_LOG_FILE CUDA_LOG_FILE "
      "MLX5_DEBUG_FILE ONEDNN_JIT_DUMP CUDA_COREDUMP_FILE CUDA_CACHE_PATH KINETO_CONFIG HOME "
      "TMPDIR XDG_CACHE_HOME MKL_VERBOSE_OUTPUT_FILE PYTORCH_TUNABLEOP_FILENAME "
      "ONEDNN_JIT_PROFILE JITDUMPDIR MSLK_CACHE_DIR CUDA_ENABLE_COREDUMP_ON_EXCEPTION "
      "CUDA_ENABLE_USER_TRIGGERED_COREDUMP NVLOG_CONFIG_FILE FBGEMM_STATS_LOGPATH "
      "LTC_SAVE_TENSORS_FILE TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE";
  constexpr char kOthers[] =
      "NCCL_RAS_ENABLE CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES CUDA_DEVICE_ORDER "
      "CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE PHALANX_ANYTHING";
  const std::vector<std::string> names =
      absl::StrSplit(absl::StrCat(kOfCode, " ", kOfFiles, " ", kOthers), ' ');
  for (const std::string& name : names) {
    EXPECT_THAT(
        Wrong(Document(absl::StrCat("env: {", name, ": x}"))),
        ElementsAre(StartsWith(absl::StrCat("spec.env.", name, ": x: a job may not set it: "))));
    EXPECT_THAT(Wrong(Document(absl::StrCat("secrets: {", name, ": x}"))),
                ElementsAre(StartsWith(
                    absl::StrCat("spec.secrets.", name, ": x: a job may not set it: "))));
  }
  EXPECT_THAT(Wrong(Document("env: {NCCL_TOPO_FILE: topology.xml, LDX: y, MY_PLUGIN: z, HOMES: a, "
                             "MY_PATH: b, PATHS: c, "
                             "RDMAV_FORK_SAFE: \"1\", CUDA_CACHE_DISABLE: \"1\", OMP_NUM_THREADS: "
                             "\"2\"}")),
              IsEmpty());
}

TEST(EnvironmentTest, OfAJobThatWasAccepted_NamesAreNotAskedAgain) {
  const std::string text = Document("env: {HOME: /elsewhere}");
  EXPECT_FALSE(wire::ReadJobFile(text, Purpose::kSubmit).ok());
  EXPECT_FALSE(wire::ReadJobFile(text, Purpose::kPlan).ok());
  const auto job = wire::ReadJobFile(text, Purpose::kAccepted);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->spec.env, ElementsAre(Pair("HOME", "/elsewhere")));
}

TEST(EnvironmentTest, WhatIsNoVariable_IsRefused) {
  for (const std::string name : {"9A", "A-B", "A B", "A=B", "\u00c4"}) {
    EXPECT_THAT(Wrong(Document(absl::StrCat("env: {\"", name, "\": x}"))),
                ElementsAre(HasSubstr("the name of a variable has letters, digits and '_'")))
        << name;
  }
  EXPECT_THAT(Wrong(Document("env: {A: \"one\\ntwo\"}")),
              ElementsAre(HasSubstr("must have no control characters")));
  EXPECT_THAT(Wrong(Document("env: {A: 5}")),
              ElementsAre("spec.env.A: 5: must be a string: put it in quotes"));
  EXPECT_THAT(Wrong(Document(absl::StrCat("env: {A: ", std::string(254, 'x'), "}"))),
              ElementsAre(HasSubstr("may be at most 253 bytes long")));
  std::string many = "env: {A0: x";
  for (int i = 1; i <= 64; ++i) absl::StrAppend(&many, ", A", i, ": x");
  EXPECT_THAT(Wrong(Document(many + "}")), ElementsAre(HasSubstr("may have at most 64 entries")));
}

TEST(EnvironmentTest, SecretsThatAreNoFilesOfTheFolder_AreRefused) {
  for (const std::string file : {"../token", "/etc/shadow", ".hidden", "a/b", "..", "two words"}) {
    EXPECT_THAT(Wrong(Document(absl::StrCat("secrets: {TOKEN: \"", file, "\"}"))),
                ElementsAre(HasSubstr("must be the name of a file")))
        << file;
  }
  for (const std::string name : {"NCCL_SOCKET_IFNAME", "GOMP_TOKEN"}) {
    EXPECT_THAT(Wrong(Document(absl::StrCat("secrets: {", name, ": token}"))),
                ElementsAre(absl::StrCat("spec.secrets.", name,
                                         ": token: may not be a secret: libraries write variables "
                                         "of such names to logs")));
  }
  EXPECT_THAT(Wrong(Document("env: {TOKEN: a}\n  secrets: {TOKEN: b}")),
              ElementsAre("spec.secrets.TOKEN: b: is in env too"));
}

}  // namespace
}  // namespace phalanx::job
