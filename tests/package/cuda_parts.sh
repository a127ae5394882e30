# Parts of what packs the rank for CUDA on machines that have no CUDA: sourced by cuda.sh and image.sh, with
# `source` the checkout and `toolkit` the folder of CUDA's libraries, empty if there are none.

# FOLDER: a build folder of cmake/package.cmake alone for PHALANX_WITH_CUDA, with programs that do nothing and
# the LibTorch that a real one has.
stand_in_build() {
  mkdir -p "$1/source"
  ln -s "$source"/{cmake,deploy,examples,scripts} "$1/source/"
  printf '#include <stdio.h>\nint main(void) { puts("stands in"); return 0; }\n' > "$1/source/program.c"
  cat > "$1/source/CMakeLists.txt" << 'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(phalanx VERSION 0.1.0 LANGUAGES C CXX)
set(PHALANX_WITH_CUDA ON)
list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
find_package(LibTorch REQUIRED)
foreach(program phalanx phalanx-coordinator phalanx-worker phalanx-rank)
  add_executable(${program} program.c)
endforeach()
set_target_properties(phalanx-rank PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(phalanx-rank PRIVATE LibTorch::cuda)
include(package)
CMAKE
  cmake -S "$1/source" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${@:2}"
  cmake --build "$1/build"
}

# FOLDER: a repository of packages that are named as NVIDIA's, which the rank's package depends on. Their
# libraries are empty, but for NCCL where there is a toolkit: those of CUDA are gigabytes, and need others that
# NVIDIA's own packages bring.
nvidia_packages() {
  local folder=$1 library package root
  mkdir -p "$folder"
  while IFS='=' read -r library package; do
    root=$folder/roots/$package
    mkdir -p "$root/DEBIAN" "$root/usr/lib/x86_64-linux-gnu"
    printf 'Package: %s\nVersion: 13.0-0\nArchitecture: amd64\nMaintainer: nobody <nobody@packages.invalid>\nDescription: stands in for the one of NVIDIA\n' \
      "$package" > "$root/DEBIAN/control"
    printf 'activate-noawait ldconfig\n' > "$root/DEBIAN/triggers"
    if [ "$library" = libnccl.so.2 ] && [ -e "$toolkit/$library" ]; then
      cp -L "$toolkit/$library" "$root/usr/lib/x86_64-linux-gnu/"
    else
      gcc -shared -nostdlib "-Wl,-soname,$library" -o "$root/usr/lib/x86_64-linux-gnu/$library" -x c /dev/null
    fi
  done < <(libraries_of_cuda)
  for root in "$folder"/roots/*; do dpkg-deb --root-owner-group -Zgzip -z1 --build "$root" "$folder" > /dev/null; done
  rm -rf "$folder/roots"
  (cd "$folder" && dpkg-scanpackages --multiversion . > Packages 2> /dev/null)
}

# The table of cmake/package.cmake, a line each.
libraries_of_cuda() {
  sed -n '/^set(PHALANX_CUDA_LIBRARIES/,/CACHE STRING/p' "$source/cmake/package.cmake" | grep -oE 'lib[^ ]+=[^ ]+'
}
