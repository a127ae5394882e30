// core/job/devices.h: how many devices a job gets, and of which nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "core/job/job_spec.h"

namespace phalanx::job {

// All at once: those of its ranks, those that idle beyond them, and spares. Of a job with a layout
// that is left to the planner as many as it will have once that is chosen, within
// resources.devices: until then its modules have no ranks to count.
inline int32_t DevicesOf(const JobSpec& spec) {
  const int32_t ranks = spec.HasOpenLayout() ? 0 : spec.World();
  return std::max(spec.resources.devices, ranks) + spec.resources.spares;
}

// A label that the daemon of a node with GPUs gives it: "yes" if all of them have FP8, else "no".
inline constexpr char kFp8Label[] = "phalanx/fp8";
// A label that the daemon of a node with GPUs gives it: the table of algorithms of products that
// its ranks have for them (schedule::ReferenceOf). Without it, or "none": libraries choose.
inline constexpr char kProductsLabel[] = "phalanx/products";
inline constexpr char kNoProducts[] = "none";
// The label of a node that names what it fails together with: a rack, a power circuit. Without it
// that is the node alone.
inline constexpr char kFailureDomainLabel[] = "phalanx/failure-domain";

// The labels that a node must have: those that the job names, and what its devices must be able to.
inline std::map<std::string, std::string> NodeSelectorOf(const JobSpec& spec) {
  std::map<std::string, std::string> selector = spec.resources.node_selector;
  if (spec.linear == LinearFormat::kFp8 && spec.resources.device == DeviceKind::kGpu)
    selector[kFp8Label] = "yes";
  return selector;
}

}  // namespace phalanx::job
