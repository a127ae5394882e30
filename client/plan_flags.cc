#include "client/plan_flags.h"

#include "core/schedule/profile.h"
#include "core/schedule/search.h"

namespace phalanx::client {
namespace {

void AddSearch(CLI::App* plan, PlanOptions& options) {
  plan->add_flag("--search", options.search,
                 "show the fastest layouts, and why each is slower than the one before");
  plan->add_option("--devices", options.devices,
                   "search on so many devices, in nodes of 8; default: those of the job")
      ->check(CLI::Range(1, schedule::kSearchDevicesMax))
      ->type_name("N");
  plan->add_option("--write", options.write, "write the job with the fastest layout to a file")
      ->type_name("FILE");
}

void AddPrediction(CLI::App* plan, PlanOptions& options) {
  CLI::Option* kind =
      plan->add_option("--device-kind", options.device_kind,
                       "predict a step with what was measured of this kind of device; a search "
                       "without one is of the kind nominal")
          ->check(CLI::IsMember(schedule::ProfileNames()))
          ->type_name("KIND");
  plan->add_option("--device-profile", options.device_profile,
                   "the same with a profile of your own, as phalanx-bench profile writes it")
      ->excludes(kind)
      ->type_name("FILE");
  plan->add_option(
          "--items", options.items,
          "images or sounds of a sample that a search or a prediction counts with; default "
          "batch.items of the job")
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
}

}  // namespace

void AddPlanFlags(CLI::App* plan, PlanOptions& options) {
  plan->add_option("--nodes", options.nodes, "lay the job on so many nodes of so many devices")
      ->type_name("NODESxDEVICES");
  plan->add_option("--domain-nodes", options.domain_nodes,
                   "with --nodes: how many of them are in each failure domain, in order; the last "
                   "number goes on")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N[,N...]");
  plan->add_option("--device-memory", options.device_memory,
                   "what each device has, such as 80Gi: refuse a plan that needs more, with "
                   "--device-kind also with what libraries take")
      ->type_name("SIZE");
  plan->add_option("--host-memory", options.host_memory,
                   "what each node has for copies of optimizer state, such as 1Ti")
      ->type_name("SIZE");
  plan->add_option("--svg", options.pictures.svg,
                   "draw the timeline of a step; - is standard output")
      ->type_name("FILE");
  plan->add_option("--trace", options.pictures.trace, "the same for Perfetto or chrome://tracing")
      ->type_name("FILE");
  plan->add_option("--dot", options.pictures.dot, "the module graph with its layouts, for Graphviz")
      ->type_name("FILE");
  AddPrediction(plan, options);
  AddSearch(plan, options);
}

}  // namespace phalanx::client
