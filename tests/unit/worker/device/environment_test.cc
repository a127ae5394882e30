#include "worker/device/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace phalanx::device {
namespace {

class CudaEnvironmentTest : public testing::Test {
 protected:
  CudaEnvironmentTest() {
    unsetenv("CUDA_MODULE_LOADING");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  }
};

TEST_F(CudaEnvironmentTest, NothingSet_IsSet) {
  EXPECT_EQ(SetCudaEnvironment(), "CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32");
  EXPECT_EQ(std::string(std::getenv("CUDA_MODULE_LOADING")), "EAGER");
  EXPECT_EQ(std::string(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")), "32");
}

TEST_F(CudaEnvironmentTest, WhatTheUserSet_Stays) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
  EXPECT_EQ(SetCudaEnvironment(), "CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=8");
  EXPECT_EQ(std::string(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")), "8");
}

}  // namespace
}  // namespace phalanx::device
