#!/usr/bin/env bash
# Every C++ and CUDA source is laid out as .clang-format says; skips (77) where clang-format 14, whose
# layout is the reference, is not installed; under CI, which names PHALANX_EXIT_WITHOUT_TOOL, it fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
formatter=$(command -v clang-format-14 || command -v clang-format || echo false)
"$formatter" --version | grep -q 'version 14\.' ||
  { echo "no clang-format 14 here"; exit "${PHALANX_EXIT_WITHOUT_TOOL:-77}"; }
find client coordinator core tests transport worker -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' |
  xargs -P "$(nproc)" -n 40 "$formatter" --dry-run -Werror
