# LibTorch as unpacked from the torch wheel by scripts/setup into the dependency folder.
# Targets: LibTorch::cpu (torch_cpu and c10 alone: libtorch.so would drag in 2.5 GB of CUDA libraries)
# and, for PHALANX_WITH_CUDA, LibTorch::cuda.

set(PHALANX_DEPS_DIR "$ENV{PHALANX_DEPS_DIR}" CACHE PATH "Dependency folder that scripts/setup fills")
if(NOT PHALANX_DEPS_DIR)
  set(PHALANX_DEPS_DIR "$ENV{HOME}/.cache/phalanx/deps")
endif()
set(LibTorch_ROOT "${PHALANX_DEPS_DIR}/torch-2.11.0")

find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h PATHS ${LibTorch_ROOT}/include NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_INCLUDE_DIR)

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(LibTorch::cpu INTERFACE
    ${LibTorch_ROOT}/lib/libtorch_cpu.so ${LibTorch_ROOT}/lib/libc10.so)
  target_link_options(LibTorch::cpu INTERFACE
    -Wl,--allow-shlib-undefined -Wl,-rpath-link,${LibTorch_ROOT}/lib)
  add_library(LibTorch::cuda INTERFACE IMPORTED)
  # Most programs refer to nothing of torch_cuda by name: loading it is what registers the kernels.
  target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
    -Wl,--push-state,--no-as-needed,${LibTorch_ROOT}/lib/libtorch_cuda.so,${LibTorch_ROOT}/lib/libc10_cuda.so,--pop-state)

  # What programs load of its folder; on GPUs the other libraries of CUDA come from NVIDIA's packages.
  set(LibTorch_RUNTIME_LIBRARIES libtorch_cpu.so libc10.so libgomp.so.1 libcudart.so.13 libcupti.so.13)
  if(PHALANX_WITH_CUDA)
    list(APPEND LibTorch_RUNTIME_LIBRARIES libtorch_cuda.so libc10_cuda.so libtorch_nvshmem.so
         libtorch_cuda_linalg.so)
  endif()
  list(TRANSFORM LibTorch_RUNTIME_LIBRARIES PREPEND ${LibTorch_ROOT}/lib/)
endif()
