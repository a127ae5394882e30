#include "tests/sim/scale/report.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/sim/scale/field.h"
#include "tests/sim/scale/field_run.h"
#include "tests/sim/scale/static_losses.h"
#include "tests/sim/scale/throughput.h"

namespace phalanx::scale {
namespace {

constexpr double kStoodMax = 1e-6;  // recoveries take no time
const std::vector<double> kShares = {0.0005, 0.001, 0.002, 0.003, 0.004};

// What the paper's figures come to at a share, in percent: replicas without their failed devices
// packed into few and not, and the narrowed ones of its nonuniform tensor parallelism.
struct Published {
  double failed;
  const char* dropped;         // in place
  const char* dropped_packed;  // domains that are hit are packed into few replicas at a restart
  const char* narrowed;        // likewise, with 6 or 7 of 8 samples
};
constexpr Published kPublished[] = {{0.0005, "11.8", "1.6", "0.2-0.4"},
                                    {0.001, "22.8", "3.6", "0.5-0.9"},
                                    {0.002, "40.4", "6.6", "0.8-1.6"},
                                    {0.003, "53.6", "9.4", "1.2-2.4"},
                                    {0.004, "64.2", "12.4 (paper: 12)", "1.6-3.1 (paper: 3)"}};

std::string Percent(double share) { return absl::StrFormat("%.2f", 100 * share); }
std::string Milliseconds(double seconds) { return absl::StrFormat("%.1f", 1e3 * seconds); }
std::string Microseconds(double seconds) { return absl::StrFormat("%.1f", 1e6 * seconds); }

class Page {
 public:
  explicit Page(const std::function<void(const std::string&)>& progress) : progress_(progress) {}
  void Add(const std::string& text) {
    absl::StrAppend(&text_, text, "\n");
    progress_(text);
  }
  void Row(const std::vector<std::string>& cells) {
    Add(absl::StrCat("| ", absl::StrJoin(cells, " | "), " |"));
  }
  void Head(const std::vector<std::string>& cells) {
    Row(cells);
    Add(absl::StrCat("|", absl::StrJoin(std::vector<std::string>(cells.size(), "---"), "|"), "|"));
  }
  const std::string& text() const { return text_; }

 private:
  const std::function<void(const std::string&)>& progress_;
  std::string text_;
};

std::string WhatFails(const ReportOptions& options) {
  if (options.days <= 0)
    return "Devices of a job are gone at random, and stay so: no time passes, and nothing is "
           "repaired";
  return absl::StrCat(
      "Devices of a job are gone at random, and then those of the whole cluster fail and are "
      "repaired as in the field, for ",
      options.days, options.days == 1 ? " day" : " days");
}

void AddHead(const ReportOptions& options, const Workload& workload, Page* page) {
  page->Add(absl::StrCat(
      "# What lost devices cost at scale\n\n",
      "<!-- Written by `build/release/tests/phalanx-sim-scale --size ", options.size, " --seed ",
      options.seed, " --draws ", options.draws, " --days ", options.days, " --losses ",
      options.losses, " --write docs/scale.md`. -->\n\n",
      "`tests/sim/scale` is one program in which the real machine of the coordinator and the real "
      "planner have ",
      workload.nodes, " simulated nodes of ", workload.devices_per_node, " devices. ",
      WhatFails(options),
      "; what is left of the jobs' throughput follows from the layouts that the planner makes, "
      "under the project's own costs of shapes and its simulator of steps. Nothing here was "
      "measured on GPUs.\n\n"));
  const std::vector<int32_t> jobs = ReplicasOfJobs(workload);
  page->Add(absl::StrCat("The jobs: `", workload.architecture, "` with tp ", workload.tp, ", pp ",
                         workload.pp, ", 1f1b, microbatches of one sample, ", workload.samples,
                         " samples of a step for each replica of ", workload.replica_ranks(),
                         " devices; jobs of ", absl::StrJoin(jobs, ", "),
                         " replicas fill the cluster. A job may have 1,048,576 ranks.\n"));
}

void AddPolicies(Page* page) {
  page->Add(
      "Policies: *drop-replica* (`ladder: [drop-replica]`) leaves out every replica that has lost "
      "a device. *parity* (`widths: parity`) narrows the stages that have lost some, all to the "
      "width of the narrowest. *own widths* (`widths: own`, the default) leaves each of them what "
      "it has; samples are dealt to replicas by what they can do. *Idle devices as spares* "
      "(`ladder: [spare, drop-replica]`) gives the devices of replicas that are left out to "
      "others, wherever they are, as the coordinator does by the rung `spare` (docs/recovery.md); "
      "a tensor group then reaches beyond its nodes, which is not in the costs. Only the table of "
      "devices gone at random has it: in the simulated days a rank stays on its device.\n\n"
      "Two figures for each: *work*, what is lost of what replicas can do, each as fast as its "
      "slowest stage, if samples could be cut at will; *step*, what is lost with the simulated "
      "step, in which the global batch stays and every replica has whole samples. With few samples "
      "that rounds much; where replicas are left out it also fills the pipelines of the others "
      "better, so that the step may lose less than the work.\n");
}

void AddStatic(const ReportOptions& options, const Workload& workload, Page* page) {
  const std::vector<int64_t> samples = {workload.samples, 8 * workload.samples};
  std::vector<Policy> policies = PoliciesInForce();
  policies.push_back(Policy::kSpares);
  page->Add(absl::StrCat("## Devices gone at random\n\nOf one job of ", workload.job_ranks(),
                         " devices, means of ", options.draws,
                         " draws; everything in percent but for replicas and widths.\n"));
  page->Head({"failed", "devices", "policy", "replicas", "of them narrowed", "narrowest",
              "work lost", absl::StrCat("step lost, ", samples[0], " samples a replica"),
              absl::StrCat("step lost, ", samples[1], " samples")});
  for (const StaticRow& row :
       LoseAtRandom(workload, policies, kShares, samples, options.draws, options.seed)) {
    page->Row({Percent(row.failed), absl::StrCat(row.lost), NameOf(row.policy),
               absl::StrFormat("%.1f", row.replicas), absl::StrFormat("%.1f", row.narrowed),
               absl::StrCat(row.narrowest), Percent(row.work_lost), Percent(row.step_lost[0]),
               Percent(row.step_lost[1])});
  }
  page->Add("");
}

void AddPublished(Page* page) {
  page->Add(
      "Beside it the published figures (arXiv 2504.06095: 32K devices, tp 32, 8 domains a replica, "
      "128 replicas, 8 samples each). The paper prints curves; the columns are our closed forms of "
      "its model, with its own words where there are some. Its jobs restart and pack the domains "
      "that are hit into few replicas, and a replica that is narrowed does fewer samples, so that "
      "the batch shrinks; here nothing restarts, a loss stays where it is, and the batch stays. "
      "With power boosting the paper loses less than 1.\n");
  page->Head({"failed", "replicas dropped, in place", "dropped, packed", "narrowed, packed"});
  for (const Published& row : kPublished)
    page->Row({Percent(row.failed), row.dropped, row.dropped_packed, row.narrowed});
  page->Add("");
}

std::string AddField(const ReportOptions& options, const Workload& workload, Page* page) {
  page->Add(absl::StrCat(
      "## Failures and repairs as in the field\n\n", workload.devices(), " devices for ",
      options.days, options.days == 1 ? " day" : " days",
      ", which begin with so many out as are on average. 78 % of failures are of hardware "
      "(back after 3 or 5 days), the others of software (3 hours); published are ",
      absl::StrFormat("%.2e", kPublishedFailuresADeviceDay),
      " failures a device-day (419 in 54 days of 16,384), which keeps 0.15 % out; the shares below "
      "are less and more of the same. Means over all jobs, in percent. Recoveries take no time "
      "here, for what they take at this size is not known: *a second each* is what the changes of "
      "the job that has most would cost if each took a second. A step that a change breaks off is "
      "done "
      "again, which is *broken off*.\n"));
  page->Head({"failed", "policy", "out in the end", "failures a day", "changes a day", "work lost",
              "step lost", "broken off", "a second each"});
  std::string trouble;
  for (const double failed : kShares) {
    for (const Policy policy : PoliciesInForce()) {
      const FieldRow row = RunField(workload, policy, failed, options.days, options.seed);
      page->Row({Percent(failed), NameOf(policy), Percent(row.out),
                 absl::StrFormat("%.1f", row.failures_a_day),
                 absl::StrFormat("%.1f", row.changes_a_day), Percent(row.work_lost),
                 Percent(row.step_lost), Percent(row.broken_off),
                 Percent(row.changes_a_day / (24 * 60 * 60))});
      if (trouble.empty()) trouble = row.trouble;
      if (trouble.empty() && row.stood > kStoodMax) {
        trouble = absl::StrCat("under ", NameOf(policy), " jobs stood still for ",
                               Percent(row.stood), " % of the time");
      }
    }
  }
  page->Add("");
  return trouble;
}

// docs/performance-control-plane.md has a table of the same kind, whose figures differ.
void AddOtherTable(Page* page) {
  page->Add(
      "The table \"Throughput against lost devices\" of docs/performance-control-plane.md is of "
      "the same job but for its MLP, 54,656 wide and not 53,248. In blocks of 128 columns these "
      "are 427 and 416: of 32 ranks 14 and 13 on whoever has most, of 31 ranks 14 on either, of 30 "
      "ranks 15 and 14. So "
      "there the first device that a stage loses costs its attention alone (5 heads instead of 4 "
      "on "
      "some rank), and the second one its MLP; here the first costs both, and the second nothing. "
      "With 8 samples a replica, which cannot be cut, a step is as long as the narrowest stage "
      "needs "
      "for its 8: some 4.5 % are lost there to a stage of 31 ranks and 7.3 % to one of 30, and 7.3 "
      "% "
      "here to either. Of 16 lost devices two are in one stage in a tenth of all draws, of 66 in "
      "nearly all, where both tables have the same.\n");
}

void AddOwnWork(const ReportOptions& options, const Workload& workload, Page* page) {
  const OwnWork work = MeasureOwnWork(workload, options.losses, options.seed);
  page->Add(absl::StrCat(
      "## The coordinator's own work\n\nOf one core of the machine that wrote this page, ",
      work.nodes, " nodes, a job of ", work.ranks,
      " ranks among the others that fill them. A change is a loss of a device or its return: a "
      "plan, "
      "its assignment to all nodes, and three reports of each rank (it has left, it is ready, its "
      "state has all homes). Without transport, codec and disk.\n"));
  page->Head({"what", "takes"});
  page->Row({"a node registers", absl::StrCat(Microseconds(work.registration), " us")});
  page->Row({"all jobs start, without their plans", absl::StrFormat("%.2f s", work.start)});
  page->Row({"a heartbeat", absl::StrCat(Microseconds(work.heartbeat), " us")});
  page->Row({"the plan of a change, mean", absl::StrCat(Milliseconds(work.plan_mean), " ms")});
  page->Row({"the plan of a change, most", absl::StrCat(Milliseconds(work.plan_max), " ms")});
  page->Row({absl::StrFormat("a change besides, %.0f events", work.events),
             absl::StrCat(Milliseconds(work.machine), " ms")});
  page->Row({"memory of the program",
             absl::StrFormat("%.2f GB", static_cast<double>(work.resident_bytes) / 1e9)});
  page->Add("");
}

void AddLimits(Page* page) {
  page->Add(
      "## What it leaves out\n\n"
      "Communication costs by bytes and nominal links, not by topology: a tensor group is as fast "
      "wherever it is. State is not simulated: that a second loss hits both homes of some state "
      "before mirrors are made again, or that all of a stage is lost, cannot happen here. A device "
      "fails alone, not with its node. A node is repaired as a whole, by another daemon process, "
      "so "
      "a repair takes its other ranks out for a moment: two changes more. Idle devices that fail "
      "are found when they get work.\n");
}

}  // namespace

Report MakeReport(const ReportOptions& options,
                  const std::function<void(const std::string&)>& progress) {
  const Workload workload = options.size == "small" ? SmallWorkload() : PaperWorkload();
  Page page(progress);
  Report report;
  AddHead(options, workload, &page);
  AddPolicies(&page);
  AddStatic(options, workload, &page);
  if (options.size == "paper") {
    AddPublished(&page);
    AddOtherTable(&page);
  }
  if (options.days > 0) report.trouble = AddField(options, workload, &page);
  if (options.losses > 0) AddOwnWork(options, workload, &page);
  AddLimits(&page);
  report.page = page.text();
  return report;
}

}  // namespace phalanx::scale
