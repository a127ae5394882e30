#include "worker/rank/rank_figures.h"

#include <sys/resource.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/family.h"
#include "core/posix/held_folder.h"
#include "core/posix/whole_file.h"
#include "nlohmann/json.hpp"
#include "worker/model/fp8.h"
#include "worker/model/products.h"
#include "worker/rank/record_file.h"

namespace phalanx::rank {
namespace {

nlohmann::ordered_json ToJson(const StepProfile& profile) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (size_t p = 0; p < kWorkParts; ++p) {
    const StepProfile::Part& part = profile.parts[p];
    parts[WorkPartName(static_cast<WorkPart>(p))] = {
        {"kernels", part.kernels}, {"seconds", part.seconds}, {"share", part.share}};
  }
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const StepProfile::Kernel& kernel : profile.kernels) {
    kernels.push_back({{"name", kernel.name},
                       {"part", WorkPartName(kernel.part)},
                       {"count", kernel.count},
                       {"seconds", kernel.seconds}});
  }
  nlohmann::ordered_json gaps = nlohmann::ordered_json::array();
  for (const StepProfile::Gap& gap : profile.gaps) {
    gaps.push_back({{"at", gap.at},
                    {"seconds", gap.seconds},
                    {"communication", gap.communication},
                    {"after", gap.after},
                    {"before", gap.before}});
  }
  return {{"step", profile.step},
          {"seconds", profile.seconds},
          {"waiting", profile.waiting},
          {"parts", parts},
          {"gaps", gaps},
          {"kernels", kernels}};
}

// Whether the rank has decoder layers whose products are.
bool MultipliesInFp8(const plan::Plan& plan, Rank rank) {
  if (plan.spec.linear != job::LinearFormat::kFp8) return false;
  const std::vector<plan::Place> places = plan.PlacesOf(rank);
  return std::any_of(places.begin(), places.end(), [&](const plan::Place& place) {
    return job::TraitsOf(plan.module_spec(place.module).architecture).decoder();
  });
}

nlohmann::ordered_json Fp8Json(bool on_cuda) {
  const model::Fp8Words words = model::DescribeFp8(on_cuda);
  nlohmann::ordered_json json = {{"recipe", words.recipe}};
  for (const model::Fp8Words::Product& product : words.products) {
    json[product.name] = {
        {"operands", product.operands}, {"sums", product.sums}, {"result", product.result}};
  }
  return json;
}

// As in a table (core/schedule/product_table.h), each with whether it was computed by one.
nlohmann::ordered_json ProductsJson(const std::vector<model::MetProduct>& products) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  const auto type = [](schedule::ProductType of) {
    return std::string(schedule::ProductTypeNames()[static_cast<size_t>(of)]);
  };
  for (const auto& [key, count, by_table] : products) {
    all.push_back({{"a", type(key.a)},
                   {"b", type(key.b)},
                   {"d", type(key.d)},
                   {"a_turned", key.a_turned},
                   {"b_turned", key.b_turned},
                   {"add", key.add},
                   {"fast", key.fast},
                   {"bias", key.bias},
                   {"m", key.m},
                   {"n", key.n},
                   {"k", key.k},
                   {"count", count},
                   {"by_table", by_table}});
  }
  return all;
}

}  // namespace

void RankFigures::AddPasses(const train::StepFigures& figures, const schedule::Program& program) {
  using schedule::Op;
  for (const train::InstructionTime& time : figures.instructions) {
    const schedule::Instruction& instruction = program[static_cast<size_t>(time.instruction)];
    const double seconds = time.work();
    if (schedule::IsPass(instruction.op)) {
      const size_t kind = instruction.op == Op::kForward         ? 0
                          : instruction.op == Op::kBackwardInput ? 1
                                                                 : 2;
      Passes& passes = passes_[{instruction.module, instruction.chunk}][kind];
      passes.seconds += seconds;
      ++passes.count;
    } else if (instruction.op == Op::kOptimize ||
               (schedule::IsCollective(instruction.op) && instruction.op != Op::kRecord)) {
      finish_seconds_ += seconds;
    }
  }
}

void RankFigures::Add(const train::StepSummary& step, const schedule::Program& program,
                      const device::AllocatorCounts& counts,
                      const model::PreparationCounts& prepared) {
  // Of the step before the first of an epoch nothing is known.
  if (step.step > kWarmupSteps + 1 && previous_seconds_ > 0) {
    ++steps_;
    step_seconds_ += previous_seconds_;
    host_seconds_ += previous_host_seconds_;
    busy_seconds_ += step.previous.busy;
    exposed_comm_seconds_ += step.previous.exposed_comm;
    AddPasses(step.previous, program);
  }
  if (steps_ == 0) {
    first_counts_ = counts;
  } else {
    if (counts.allocations > last_counts_.allocations) allocated_at_ = step.step;
    if (prepared != prepared_) prepared_at_ = step.step;
  }
  last_counts_ = counts;
  prepared_ = prepared;
  previous_seconds_ = step.seconds;
  previous_host_seconds_ = step.host_seconds;
}

absl::Status RankFigures::MakeFolder(const std::string& output,
                                     const std::vector<std::string>& folders) {
  const std::string folder = absl::StrCat(output, "/ranks");
  const absl::Status made = HeldFolder::Make(folder, folders).status();
  return made.ok() ? made : OutputError("make the folder", folder, made);
}

absl::Status RankFigures::Write(const std::string& output, const plan::Plan& plan, Rank rank,
                                int64_t memory_bytes, const std::optional<StepProfile>& profile,
                                const std::vector<std::string>& folders) const {
  RETURN_IF_ERROR(MakeFolder(output, folders));
  const std::string path = absl::StrCat(output, "/ranks/rank-", rank.value, ".json");
  nlohmann::ordered_json figures;
  figures["rank"] = rank.value;
  figures["steps"] = steps_;
  figures["step_seconds"] = step_seconds_;
  figures["busy_seconds"] = busy_seconds_;
  figures["exposed_comm_seconds"] = exposed_comm_seconds_;
  figures["finish_seconds"] = finish_seconds_;
  figures["passes"] = nlohmann::ordered_json::array();
  for (const auto& [part, kinds] : passes_) {
    const auto mean = [](const Passes& passes) {
      return passes.count > 0 ? passes.seconds / static_cast<double>(passes.count) : 0.0;
    };
    figures["passes"].push_back({{"module", part.first},
                                 {"stage", plan.PlaceOf(rank, part.first)->pp},
                                 {"chunk", part.second},
                                 {"forward", mean(kinds[0])},
                                 {"backward_input", mean(kinds[1])},
                                 {"backward_weight", mean(kinds[2])}});
  }
  figures["host_seconds"] = host_seconds_;
  figures["allocator"] = {{"allocations", last_counts_.allocations - first_counts_.allocations},
                          {"frees", last_counts_.frees - first_counts_.frees},
                          {"retries", last_counts_.retries - first_counts_.retries},
                          {"last_step", allocated_at_}};
  figures["prepared"] = {{"attention_trials", prepared_.attention_trials},
                         {"attention_plans", prepared_.attention_plans},
                         {"fp8_products", prepared_.fp8_products},
                         {"last_step", prepared_at_}};
  if (MultipliesInFp8(plan, rank))
    figures["fp8"] = Fp8Json(plan.spec.resources.device == job::DeviceKind::kGpu);
  if (const auto products = model::ProductsMet(); !products.empty())
    figures["products"] = ProductsJson(products);
  figures["memory_bytes"] = memory_bytes;
  if (profile.has_value()) figures["profile"] = ToJson(*profile);
  return WriteWholeFile(path, absl::StrCat(figures.dump(), "\n"), 0666, folders);
}

int64_t ResidentBytesMax() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace phalanx::rank
