#!/usr/bin/env bash
# A pure library asks the world for nothing: no clock, thread, randomness, environment or network.
set -euo pipefail
found=$(nm -C --undefined-only "$1" | grep -E \
  'chrono::_V2::(system|steady)_clock::now|absl::.*::(Now|GetCurrentTimeNanos)\(|random_device|\bgetenv\b|pthread_create|std::thread::_M_start_thread|clock_gettime|nanosleep|SleepFor|grpc::|at::|google::protobuf' || true)
if [ -n "$found" ]; then
  echo "$1 uses what a pure library may not:"; echo "$found"; exit 1
fi
