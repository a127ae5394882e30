"""The measurements and goals of a machine with one, two, four or eight GPUs. What they are: plans.py."""
import verdicts

SELECTIVE = {"recompute": "selective"}


def one(plan):
    plan.make_data()
    plan.stage("shapes", "many shapes of models and samples, nowhere below 1.15 times the other program, median 1.2", 600, 570, needs=("ANCHOR",), part=5,
               figures=plan.stages / "shapes" / "shapes.json")
    plan.goal("shapes of models and samples", "nowhere below 1.15 times FSDP2 + compile, median 1.2", "shapes", verdicts.all_shapes("shapes"))
    plan.anchors("1p6b", part=1)
    plan.speed("1p6b", (55_500, 66_250), part=1, once=2)
    plan.limit("1p6b", part=1)
    for name, steps, seconds, usual in (("steady", "2,000 steps", 330, 250), ("steady-fp8", "500 steps in FP8", 140, 90)):
        plan.stage(name, f"{steps} of samples that differ: nothing grows", seconds, usual, part=2, figures=plan.stages / name / "steady.json", folder=plan.stages / name)
        plan.goal(f"{steps} of samples that differ", "memory, allocations, plans and host time stay as they are", name, verdicts.steady(name))
    plan.profile(part=2)
    plan.predict_jobs(part=2)
    plan.losses("fp8-1p6b", 470, 420, "300 steps of the 1.6B model on pictures and names", part=3)
    plan.kernels(part=4)
    plan.checked(part=5)
    plan.losses("fp8-emoji", 180, 100, "500 steps of the emoji job", part=4)
    plan.parts("1p6b", part=1)
    for part, model in ((6, "1p6b"), (7, "5b")):
        plan.products(model, part)
    plan.anchors("5b", part=8)
    # Four samples do not fit one device without: 139 GiB of 139.8, and NCCL, contexts and libraries beside them.
    plan.speed("5b", (20_500, 28_750), part=8, settings=2 * (SELECTIVE,))
    plan.limit("5b", part=8)


def two(plan):
    whole = "{ranks: 2}"
    plan.make_data()
    short = {"batch": 8, "micro": 2, "vision": whole}
    layouts = {
        "dp2": {"language": whole},
        "tp2-host": {"language": "{ranks: 2, tp: 2}", "recovery": "{state_home: host}"},
        "pp2-host": {"language": "{ranks: 2, pp: 2}", "recovery": "{state_home: host}"},
    }
    for (name, layout), part in zip(layouts.items(), (1, 3, 6)):
        plan.recovery(f"{name}-1p6b", {**short, **layout, "model": "1p6b"}, 20, part=part, none=3)
        plan.stay_out(name, {**short, **layout, "model": "1p6b"}, part={"dp2": 1, "tp2-host": 2, "pp2-host": 6}[name],
                      key="of_the_simulated" if "pp" in name else "of_their_share")
        if name != "dp2":
            plan.recovery(f"{name}-5b", {**short, **layout, "model": "5b"}, 4, part=2)
    # By its plan 106 GiB of a device, before a loss and behind it.
    plan.recovery("dp2-5b", {**short, **layouts["dp2"], "micro": 1, "model": "5b"}, 4, part=1, none=1)
    plan.restart()
    plan.guarded(1, part=1)
    plan.guarded(4, part=1, most=0.01)
    plan.guarded(4, part=7, most=0.01, samples=8)  # as the speed of this model is measured
    plan.anchors("5b", part=4)
    # In FP8 the decoder's alone leaves no room for a microbatch beside all of the state.
    plan.speed("5b", (41_000, 57_500), part=4, once=10, kept=10, settings=(SELECTIVE, {**SELECTIVE, "encoder_recompute": "selective"}))
    plan.limit("5b", part=4)
    plan.anchors("1p6b", part=5)
    plan.speed("1p6b", (111_000, 132_500), part=5, once=6)
    plan.limit("1p6b", part=5)
    pipelines = {
        "pp2": {"language": "{ranks: 2, pp: 2}", "vision": "{ranks: 2, pp: 2}"},
        "vision-apart": {"language": "{ranks: 1}", "vision": "{ranks: 1}", "together": False},
    }
    for name, layout in pipelines.items():
        # Others are for stages on the same ranks; chunks of the decoder where they take them.
        others = (("interleaved", ", chunks: 2"), ("zero_bubble_v", ""), ("three_phase", ""), ("three_phase", ", encoder_chunks: 4")) if name == "pp2" else ()
        for schedule, chunks in (("1f1b", ""), ("zero_bubble_h1", ""), *others):
            label = f"{name}-{schedule.replace('_', '-')}" + ("-chunks" if "encoder" in chunks else "")
            plan.layout(label, "16 microbatches: at least 95 % of the bound of its sustained pass times", 140, 105, part=8 if name != "pp2" or (schedule, chunks) in others else 7, bound=0.95,
                        model="1p6b", batch=32, micro=2, steps=40, schedule=f"{{name: {schedule}{chunks}}}", **layout)
            plan.goal(f"pipeline of {label}, 16 microbatches", "at least 95 % of its bound", label, verdicts.bound(label, 0.95))
    plan.profile(part=7)
    plan.predict_jobs(part=7)
    plan.stage("shapes", "shapes of models and samples in tp2, nowhere below 1.15 times the other program in data parallel, median 1.2", 600, 480, needs=("ANCHOR",), part=8,
               environment={"SHAPES_DEVICES": "2"}, figures=plan.stages / "shapes" / "shapes.json")
    plan.parts("1p6b", part=5)
    layouts_of_two(plan, part=9)
    plan.parts("5b", part=4)
    plan.goal("shapes in tp2", "nowhere below 1.15 times FSDP2 + compile, median 1.2", "shapes", verdicts.all_shapes("shapes", 2))


def layouts_of_two(plan, part):
    """Ten layouts, predicted before any is measured, and the search's first choice."""
    whole, tp2, pp2, both = "{ranks: 2}", "{ranks: 2, tp: 2}", "{ranks: 2, pp: 2}", {"language": "{ranks: 2, pp: 2}", "vision": "{ranks: 2, pp: 2}"}
    ten = {
        "dp2": {"language": whole, "vision": whole},
        "tp2": {"language": tp2, "vision": whole},
        "tp2-both": {"language": tp2, "vision": tp2},
        "pp2": {"language": pp2, "vision": whole},
        "pp2-both": both,
        "apart": {"language": "{ranks: 1}", "vision": "{ranks: 1}", "together": False},
        "zero-bubble": {**both, "schedule": "{name: zero_bubble_h1}"},
        "interleaved": {**both, "schedule": "{name: interleaved, chunks: 2}"},
        "phases": {"language": pp2, "vision": whole, "schedule": "{name: three_phase}"},
        "phases-chunks": {"language": pp2, "vision": whole, "schedule": "{name: three_phase, encoder_chunks: 4}"},
    }
    micro = plan.samples["1p6b"] // 2
    plan.search("1p6b", 32, micro, part=part)
    for name, layout in ten.items():
        plan.layout(name, "one of ten layouts, 1.6B: predicted within 5 %, memory within 5 %", 90, 62, part=part, model="1p6b", batch=32, micro=micro, steps=20,
                    recovery="{state_copies: 1}", **layout)
    plan.found("1p6b", part=part)
    plan.predict_layouts(part=part)
    plan.goal("the search's first choice", "within 3 % of the best of ten layouts", "found-1p6b", verdicts.first_choice("found-1p6b", list(ten)))
    for quantity in ("step", "memory"):
        plan.goal(f"{quantity} of ten layouts, predicted beforehand", "each within 5 %", "predictions", verdicts.predicted("predictions", [*ten, "found-1p6b"], quantity))


def layouts_of_four(plan):
    """Ten layouts, predicted before any is measured, and some of them with a device lost; copies and widths."""
    half, whole, chunks = "{ranks: 2}", "{ranks: 4}", "{name: three_phase, encoder_chunks: 4}"
    plan.profile(part=2)
    plan.search("1p6b", 48, 4, part=2)
    plan.layout("dp4", "one of ten layouts; healthy, of dp4 with one lost", 60, 48, part=2, model="1p6b", language=whole, vision=whole, batch=48, micro=4, steps=24)
    ten = {  # but for dp4
        "tp2-dp2": {"language": "{ranks: 4, tp: 2}", "vision": whole},
        "tp4": {"language": "{ranks: 4, tp: 4}", "vision": whole},
        "pp4": {"language": "{ranks: 4, pp: 4}", "vision": whole},
        "pp2-dp2": {"language": "{ranks: 4, pp: 2}", "vision": whole},
        "vision-apart": {"language": "{ranks: 3, pp: 3}", "vision": "{ranks: 1}", "together": False},
        "phases-chunks": {"language": "{ranks: 4, pp: 4}", "vision": whole, "schedule": chunks},
        "interleaved": {"language": "{ranks: 4, pp: 2}", "vision": whole, "schedule": "{name: interleaved, chunks: 2}"},
        "zero-bubble": {"language": "{ranks: 4, pp: 4}", "vision": whole, "schedule": "{name: zero_bubble_h1}"},
        "tp2-apart": {"language": "{ranks: 2, tp: 2}", "vision": half, "together": False},
    }
    for name, layout in ten.items():
        plan.layout(name, "one of ten layouts, 1.6B: predicted within 5 %, memory within 5 %", 75, 52, part=2, model="1p6b", batch=48, micro=4,
                    steps=22, **layout)
    plan.found("1p6b", part=2)
    layouts = ["dp4", *ten]
    for name, layout, wanted, judge in (
            ("tp2-dp2", {"language": "{ranks: 4, tp: 2}"}, "at least 97 % of 3/4 of healthy", verdicts.kept("tp2-dp2-without-rank-3", "tp2-dp2", 0.75)),
            ("dp4", {"language": whole}, "at least 97 % of 3/4 of healthy", verdicts.kept("dp4-without-rank-3", "dp4", 0.75)),
            ("tp4", {"language": "{ranks: 4, tp: 4}"}, "at least 97 % of what the simulator says", verdicts.simulated("tp4-without-rank-3", "tp4"))):
        label = f"{name}-without-rank-3"
        plan.layout(label, f"{name} with one device lost: {wanted}", 60, 48, part=2, lost="3", after=(name,), model="1p6b", steps=18, vision=whole, batch=48, micro=4, **layout)
        plan.goal(f"{name} with one device lost", wanted, (label, name), judge)
    plan.add("copies", "copies bit-equal over 50 steps",
             [plan.work / "home" / "bin" / "test_gpu_train", "--gtest_filter=*Copies_AfterFiftySteps*/3:*Copies_AfterFiftySteps*/4"], 120, usual=80, part=2, by_exit=True)
    plan.goal("copies bit-equal over 50 steps: dp4, tied head with pp2 dp2 and tp2 pp2, 8 query and 2 key/value heads with tp2 dp2 and tp3",
              "all", "copies", verdicts.passed("copies"))
    plan.add("widths", "layouts of widths two and one train as the CPU does, copies bit-equal",
             [plan.work / "home" / "bin" / "test_gpu_train", "--gtest_filter=*UnequalWidths*/3"], 120, usual=80, part=4, by_exit=True)
    plan.goal("layouts of widths two and one train as the CPU does, copies bit-equal", "all", "widths", verdicts.passed("widths"))
    plan.predict_layouts(part=2)
    plan.goal("the search's first choice", "within 3 % of the best of ten layouts", "found-1p6b", verdicts.first_choice("found-1p6b", layouts))
    for quantity in ("step", "memory"):
        plan.goal(f"{quantity} of ten layouts, predicted beforehand", "each within 5 %", "predictions", verdicts.predicted("predictions", [*layouts, "found-1p6b"], quantity))


def four(plan):
    whole = "{ranks: 4}"
    plan.make_data()
    plan.speed("1p6b", (222_000, 265_000), part=1, once=1)
    plan.limit("1p6b", part=1)
    plan.guarded(4, part=1, most=0.01)
    layouts_of_four(plan)
    short = {"model": "1p6b", "batch": 16, "micro": 2}
    plan.recovery("dp4", {**short, "language": whole, "vision": whole}, 20, part=6, none=7)
    plan.recovery("tp2-dp2", {**short, "language": "{ranks: 4, tp: 2}", "vision": whole}, 20, part=3, none=3, each=25)
    plan.recovery("tp2-pp2-host", {**short, "language": "{ranks: 4, tp: 2, pp: 2}", "vision": whole, "recovery": "{state_home: host}"}, 20, part=4, each=32)
    plan.restart(part=4)
    # 12 microbatches: three for each of four replicas, four for each of three.
    plan.stay_out("dp4", {**short, "batch": 24, "language": whole, "vision": whole}, part=1)
    plan.speed("5b", (82_000, 115_000), part=5, once=5)
    plan.limit("5b", part=5)
    plan.search("5b", 16, 4, part=5)
    for schedule, factor in (("1f1b", 1.25), ("zero_bubble_h1", 1.35)):
        label = f"megatron-{schedule.replace('_', '-')}"
        plan.layout(label, f"vision dp1, language pp3 7/7/4, 16 microbatches: at least {factor} times Megatron-core's 41,844", 120, 85,
                    part=5, model="5b", steps=9, language="{ranks: 3, pp: 3, layers: [7, 7, 4]}", vision="{ranks: 1}", together=False,
                    batch=64, micro=4, schedule=f"{{name: {schedule}}}")
        plan.goal(f"Megatron-core's layout (vision dp1, language pp3 7/7/4), {schedule}", f"at least {factor} times 41,844 tokens/s", label,
                  verdicts.throughput(label, 41_844, factor))
    plan.anchors("5b", part=6)
    plan.anchors("1p6b", part=6)


def eight(plan):
    whole = "{ranks: 8}"
    plan.make_data()
    plan.search("5b", 32, 4, part=1)
    plan.speed("5b", (1.25, 1.35), part=1, float8=True)
    for schedule in ("1f1b", "zero_bubble_h1"):
        label = f"megatron-{schedule.replace('_', '-')}"
        plan.layout(label, "vision dp2, language pp3 dp2: at least 1.25 times Megatron-core's 74,435", 100, 85, model="5b", steps=9,
                    language="{ranks: 6, pp: 3, layers: [7, 7, 4]}", vision="{ranks: 2}", together=False, batch=128, micro=4,
                    schedule=f"{{name: {schedule}}}")
        plan.goal(f"Megatron-core's layout (vision dp2, language pp3 dp2), {schedule}", "at least 1.25 times 74,435 tokens/s", label,
                  verdicts.throughput(label, 74_435, 1.25))
    plan.stage("widths8", "tp4 dp2 and tp8 with devices lost: at least 97 % of the share that is left", 290, 260, part=3)
    short = {"model": "1p6b", "batch": 32, "micro": 2}
    plan.recovery("dp8", {**short, "language": whole, "vision": whole}, 6, part=2, none=2)
    plan.recovery("tp4-dp2", {**short, "language": "{ranks: 8, tp: 4}", "vision": whole}, 6, part=2, none=2)
    plan.recovery("tp2-pp2-host", {**short, "language": "{ranks: 8, tp: 2, pp: 2}", "vision": whole, "recovery": "{state_home: host}"}, 6, part=2)
    plan.restart(part=3)


MACHINES = {1: one, 2: two, 4: four, 8: eight}
