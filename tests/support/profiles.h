// tests/support/profiles.h: profiles that nobody measured, and jobs to search layouts for.
#pragma once

#include "core/job/job_spec.h"
#include "core/schedule/profile.h"

namespace phalanx::support {

// The profile with power, of a device that is held to 500 W and takes 100 W when it idles: all of
// its work draws so many watts at `clock_mhz` and follows the clock, at half of it with a fourth of
// the joules beside idling. The profile has rates of FP8.
schedule::DeviceProfile Powered(schedule::DeviceProfile profile, double watts, double clock_mhz);

// A decoder of 8 or of 70 billion parameters with an encoder of images and, where there are two,
// one of sounds beside it; 1,024 samples a step, on GPUs.
job::JobSpec SearchedJob(int encoders, bool large);

}  // namespace phalanx::support
