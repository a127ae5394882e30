#!/usr/bin/env python3
"""Tokens a second over many shapes of models and samples, ours beside another program's, on one GPU, or in tp2 on two.

    scripts/gpu/shapes.py WORK OUTPUT [--seconds 540] [--each 8] [--only "NAME;..."] [--devices 2] [--list]

The other program is that of the environment variable ANCHOR, with the flags of torch_fsdp_bench.py: FSDP2 and torch.compile.
Each shape has its samples (make_synthetic.py: noise, as many words as the vocabulary has, 99,000 at most), its job,
a microbatch a step, and the same for the program on labelled rows, once whole and once as two
microbatches, with blocks that keep their parameters for the backward pass, or, where those do not fit, with blocks that gather them
again; the faster counts. On two GPUs the program is in data parallel with as many samples a step. Both figures are the tokens of a step over the median step, behind a warm-up, of a run of
about --each seconds.

OUTPUT/shapes.json has every measurement as soon as it is made, so the script goes on where it was cut: what is there is not
measured again, failures are. It begins no measurement that may not end within --seconds, and says what is left.
OUTPUT/shapes.md is the table. `phalanx` comes from the PATH.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import anchor_variant  # noqa: E402

MAKER = HERE.parent.parent / "examples" / "make_synthetic.py"
WARM_UP = 10  # steps of ours
WARM_UP_OTHER = 6
RATE = 3.5e14  # FLOPs a second, to choose a number of steps
WORDS_MAX = 99_000  # the other program draws from 100,000
TIME_MAX = 170  # seconds of one measurement, start included
GOAL, GOAL_MEDIAN = 1.15, 1.2
RESHARDS = ", resharding"  # of the other program's settings

CLIP = {"hidden": 1024, "heads": 16, "ffn": 4096, "layers": 12, "size": 336, "patch": 14}
SIGLIP = {"hidden": 1152, "heads": 16, "ffn": 4304, "layers": 13, "size": 378, "patch": 14}
BASE = {"hidden": 2048, "heads": 32, "kv": 8, "ffn": 8192, "layers": 10, "vocabulary": 128256, "positions": 4096,
        "micro": 4, "images": 4, "encoder": CLIP}
# The first of each kind come first: a run that is cut has seen every kind.
SHAPES = {
    "heads of 64": {},
    "heads of 128": {"hidden": 4096, "ffn": 14336, "layers": 5},
    "text only": {"images": 0},
    "SigLIP encoder": {"encoder": SIGLIP},
    "vocabulary 32,000": {"vocabulary": 32000},
    "sequence 512, micro 8, text": {"positions": 512, "micro": 8, "images": 0},
    "sequence 3,001": {"positions": 3001, "images": 2},
    "hidden 2,000, heads of 80, MLP 5,400": {"hidden": 2000, "heads": 25, "kv": 5, "ffn": 5400},
    "heads of 96": {"hidden": 3072, "ffn": 8192, "layers": 7},
    "micro 1, one image": {"micro": 1, "images": 1},
    "sequence 32,768": {"positions": 32768, "micro": 1},
    "vocabulary 262,144": {"vocabulary": 262144},
    "heads of 80": {"hidden": 2560, "ffn": 6912},
    "sequence 16,384, 16 images": {"positions": 16384, "micro": 1, "images": 16},
    "sequence 1,001, micro 8, one image": {"positions": 1001, "micro": 8, "images": 1},
    "sequence 8,190, micro 2": {"positions": 8190, "micro": 2},
    "MLP 8,200": {"ffn": 8200},
    "hidden 1,600, heads of 64, MLP 4,304": {"hidden": 1600, "heads": 25, "kv": 25, "ffn": 4304},
}

# On two GPUs, the decoder cut into tensor ranks, the encoder in data parallel.
SHAPES_OF_TWO = {
    "tp2, heads of 64": {},
    "tp2, heads of 128": {"hidden": 4096, "ffn": 14336, "layers": 5},
    "tp2, vocabulary 262,144": {"vocabulary": 262144},
    "tp2, sequence 3,001, text": {"positions": 3001, "images": 0},
}


def of_devices(devices):
    return SHAPES if devices == 1 else SHAPES_OF_TWO


JOB = """apiVersion: phalanx/v1
kind: TrainingJob
metadata: {{name: shape}}
spec:
  seed: 17
  steps: {steps}
  modules:
{vision}    - name: language
      architecture: {{family: llama, hidden_size: {hidden}, layers: {layers}, heads: {heads}, kv_heads: {kv}, mlp_size: {ffn}, vocabulary: {vocabulary}, context: {positions}, rope_theta: 500000}}
      parallel: {{ranks: {devices}, tp: {devices}}}
{recompute}{edges}  batch: {{global: {micro}, micro: {micro}}}
  schedule: {{name: 1f1b}}
  data: {{format: webdataset, shards: "synthetic-{{000..003}}.tar", tokenizer: synthetic.model, items_max: {items_max}}}
  optimizer: {{name: adamw, learning_rate: 3e-4, warmup_steps: 10, clip_norm: 1.0}}
  recovery: {{state_copies: 1}}
  resources: {{device: gpu, devices: {devices}}}
  output: runs/shape
"""
VISION = """    - name: vision
      architecture: {{family: clip_vision, hidden_size: {hidden}, layers: {layers}, heads: {heads}, mlp_size: {ffn}, image_size: {size}, patch_size: {patch}}}
      parallel: {{ranks: {devices}}}
"""


def rows_of(encoder):
    return (encoder["size"] // encoder["patch"]) ** 2


def seconds_of_step(shape):
    """A guess, of the rows that both compute."""
    encoder, tokens = shape["encoder"], shape["micro"] * shape["positions"]
    hidden, head = shape["hidden"], shape["hidden"] // shape["heads"]
    layer = hidden * (2 * hidden + 2 * shape["kv"] * head) + 3 * hidden * shape["ffn"]
    text = 6 * tokens * (shape["layers"] * (layer + shape["positions"] * hidden) + shape["vocabulary"] * hidden)
    rows = shape["micro"] * shape["images"] * rows_of(encoder)
    items = 6 * rows * encoder["layers"] * (4 * encoder["hidden"] ** 2 + 2 * encoder["hidden"] * encoder["ffn"])
    return (text + items) / RATE


def samples(shape, work):
    """The folder of the shape's samples."""
    words = min(WORDS_MAX, shape["vocabulary"] - 29)
    encoder = shape["encoder"]
    name = f"{shape['positions']}-{shape['images']}-{encoder['size']}-{words}"
    count = max(16, 4 * shape["micro"])
    command = [sys.executable, MAKER, work / name, "--samples", count, "--noise", "--words", words, "--images", shape["images"],
               "--image-size", encoder["size"], "--patch-size", encoder["patch"], "--positions", shape["positions"]]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return work / name


def job_text(shape, steps, recompute, devices=1):
    vision = edges = ""
    if shape["images"]:
        vision = VISION.format(devices=devices, **shape["encoder"])
        edges = f"  edges:\n    - {{from: vision, to: language, projector: {{type: mlp, hidden_size: {shape['hidden']}}}}}\n"
    indented = f"      recompute: {recompute}\n" if recompute else ""
    if shape["images"]:
        indented = "      offset: vision\n" + indented
    return JOB.format(steps=steps, vision=vision, edges=edges, recompute=indented, devices=devices,
                      items_max=max(1, shape["images"]), **shape)


def tail(path):
    lines = path.read_text(errors="replace").strip().splitlines()
    said = [line for line in lines if re.search(r"[Ee]rror|out of memory|must|cannot", line)]
    return (said or lines or ["nothing said"])[-1][-300:]


def call(command, log, seconds, environment=None):
    """Errors: RuntimeError, with what the log ends with."""
    with open(log, "w") as file:
        process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 15)
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            raise RuntimeError(f"not done within {seconds:.0f} s") from None
    if status != 0:
        raise RuntimeError(f"exit code {status}: {tail(log)}")


def run_ours(shape, setting, context):
    steps = WARM_UP + context.steps
    folder = samples(shape, context.work)
    job = folder / f"{context.label}.yaml"
    job.write_text(job_text(shape, steps, setting, context.devices))
    output = context.work / f"run-{time.time_ns()}"
    call(["phalanx", "run", job, "--output", output], context.log, context.limit)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    step = statistics.median(line["step_seconds"] for line in lines[WARM_UP:])
    return {"tokens_per_s": round(shape["micro"] * shape["positions"] / step), "step_ms": round(1e3 * step, 2), "steps": context.steps}


def adapted(anchor, work):
    """A folder with both kinds of the program (anchor_of), with two lines that other sizes need: token ids within the vocabulary, and no -1 for the rows of no images."""
    text = pathlib.Path(anchor).read_text()
    for old, new in (("torch.randint(1, 100000,", "torch.randint(1, min(100000, A.vocab),"),
                     ("s.proj(e).view(ids.size(0), -1, A.hidden)", "s.proj(e).view(ids.size(0), A.images * A.img_seq, A.hidden)")):
        if new not in text and text.count(old) != 1:
            sys.exit(f"{anchor}: not the program that is known here: `{old}` is there {text.count(old)} times")
        text = text.replace(old, new)
    work.mkdir(parents=True, exist_ok=True)
    for reshard in (0, 1):
        anchor_of(work, reshard).write_text(anchor_variant.with_resharding(text, reshard))
    return work


def anchor_of(folder, reshard):
    return folder / f"anchor-{'reshards' if reshard else 'keeps'}.py"


def run_other(shape, setting, context):
    parts, reshard = setting
    encoder = shape["encoder"]
    flags = {"hidden": shape["hidden"], "heads": shape["heads"], "kv": shape["kv"], "ffn": shape["ffn"], "layers": shape["layers"],
             "vocab": shape["vocabulary"], "seq": shape["positions"], "images": shape["images"], "img-seq": rows_of(encoder),
             "enc-hidden": encoder["hidden"], "enc-heads": encoder["heads"], "enc-ffn": encoder["ffn"],
             "enc-layers": encoder["layers"] if shape["images"] else 0, "mbs": shape["micro"] // parts // context.devices, "acc": parts, "skip": 1,
             "warmup": WARM_UP_OTHER, "steps": context.steps}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", context.devices, anchor_of(context.anchor, reshard)]
    for flag, value in flags.items():
        command += [f"--{flag}", value]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(context.work / "inductor")}
    call(command, context.log, context.limit, environment)
    results = re.findall(r"^RESULT (.*)$", context.log.read_text(errors="replace"), re.M)
    if not results:
        raise RuntimeError(f"no line RESULT: {tail(context.log)}")
    result = json.loads(results[-1])
    return {"tokens_per_s": result["tokens_per_s"], "step_ms": result["step_ms"], "steps": context.steps,
            "command": shlex.join(map(str, command))}


def measurements(shape, devices):
    """[(key, function, setting)], the other program's first."""
    found = []
    for parts in (1, 2):
        if shape["micro"] % (parts * devices) == 0:
            key = f"anchor {shape['micro'] // parts // devices} x {parts}"
            found += [(key, run_other, (parts, 0)), (key + RESHARDS, run_other, (parts, 1))]
    return found + [("ours", run_ours, None), ("ours, recompute selective", run_ours, "selective")]


def wanted(key, entry):
    """Whether the measurement is to be made: recomputation and gathering again only where it does not go without."""
    if "tokens_per_s" in entry.get(key, {}):
        return False
    if key.endswith(RESHARDS):
        return "error" in entry.get(key.removesuffix(RESHARDS), {})
    return key != "ours, recompute selective" or "error" in entry.get("ours", {})


def best(entry, prefix):
    found = [(result["tokens_per_s"], key) for key, result in entry.items() if key.startswith(prefix) and "tokens_per_s" in result]
    return max(found, default=(None, None))


def table(results, devices):
    lines = ["| shape | ours, tokens/s | FSDP2 + compile | its setting | ratio |", "|---|---|---|---|---|"]
    ratios = []
    for name, entry in results.items():
        (ours, _), (other, setting) = best(entry, "ours"), best(entry, "anchor")
        if ours and other:
            ratios.append(ours / other)
            lines.append(f"| {name} | {ours:,} | {other:,} | {setting} | {ours / other:.3f} |")
        else:
            errors = "; ".join(f"{key}: {result['error']}" for key, result in entry.items() if "error" in result)
            lines.append(f"| {name} | {ours or '-'} | {other or '-'} | | {errors or 'not measured yet'} |".replace("\n", " "))
    if ratios:
        lines += ["", f"{len(ratios)} of {len(of_devices(devices))} shapes: least {min(ratios):.3f} (goal {GOAL}), median "
                      f"{statistics.median(ratios):.3f} (goal {GOAL_MEDIAN})."]
    return "\n".join(lines) + "\n"


class Context:
    """Of one measurement."""

    def __init__(self, options, anchor, name, key, shape, limit):
        self.work, self.anchor, self.limit, self.devices = options.work, anchor, limit, options.devices
        self.label = re.sub("[^A-Za-z0-9]+", "-", f"{name} {key}")
        self.log = options.output / f"{self.label}.log"
        self.steps = max(12, min(150, round(options.each * options.devices / seconds_of_step(shape))))


def measure(options, anchor, results, save):
    """False: the time was up."""
    end = time.monotonic() + options.seconds
    for name in options.only or of_devices(options.devices):
        shape = {**BASE, **of_devices(options.devices)[name]}
        entry = results.setdefault(name, {})
        for key, run, setting in measurements(shape, options.devices):
            if not wanted(key, entry):
                continue
            if end - time.monotonic() < TIME_MAX:
                return False
            context = Context(options, anchor, name, key, shape, TIME_MAX)
            try:
                entry[key] = run(shape, setting, context)
            except RuntimeError as error:
                entry[key] = {"error": str(error)}
            print(f"{name}, {key}: {entry[key].get('tokens_per_s', entry[key].get('error'))}", flush=True)
            save()
    return True


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("work", type=pathlib.Path, nargs="?")
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=540, help="of the whole run")
    parser.add_argument("--each", type=float, default=8, help="seconds of one run behind its warm-up, about")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="names of shapes, with ; between")
    parser.add_argument("--devices", type=int, choices=(1, 2), default=1)
    parser.add_argument("--list", action="store_true", help="print the shapes and their jobs, and measure nothing")
    options = parser.parse_args()
    for name in options.only or []:
        if name not in of_devices(options.devices):
            parser.error(f"--only: {name}: must be one of {'; '.join(of_devices(options.devices))}")
    if not options.list and options.output is None:
        parser.error("WORK and OUTPUT: must be given")
    return options


def main():
    options = parse()
    if options.list:
        for name in options.only or of_devices(options.devices):
            print(f"--- # {name}\n{job_text({**BASE, **of_devices(options.devices)[name]}, 40, None, options.devices)}", end="")
        return 0
    if "ANCHOR" not in os.environ:
        sys.exit("ANCHOR: must name a program with the flags of torch_fsdp_bench.py")
    options.output.mkdir(parents=True, exist_ok=True)
    anchor = adapted(os.environ["ANCHOR"], options.work)
    path = options.output / "shapes.json"
    results = json.loads(path.read_text()) if path.exists() else {}

    def save():
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(results, indent=1) + "\n")
        draft.replace(path)
        (options.output / "shapes.md").write_text(table(results, options.devices))

    done = measure(options, anchor, results, save)
    save()
    print(table(results, options.devices), end="")
    if not done:
        print("the time is up: run it again for what is left")
    return 0 if done and all(best(entry, "ours")[0] for entry in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
