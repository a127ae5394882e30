#!/usr/bin/env python3
"""What all boards keep up at once for a step's work, by the program of the environment variable LIMIT.

    LIMIT=sustained_budget.py scripts/gpu/limit.py DEVICES [FLAG...]

Runs it with these flags on each of so many devices at the same time, prints their lines, one of the tokens a second of all, which is
as many times the slowest, and the same as JSON. The program runs with two changes, where it has the lines that they change: of the last
decoder layer only keys and values are of all rows and the rest is of those that `--rows` says, as in training; and operands in FP8 are
scaled by their largest magnitude, as in training, so that their bits toggle as there. `as_is` names those of the two that are not made:
both, if the program ends with an error once it is changed, and then runs as it is.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import boards  # noqa: E402

# The last layer: its products, and attention of the last rows of each sample over the keys before them and, causally, their own.
LAST_LAYER = """
def product(w, rows):
    x, y = g(rows, w.size(1)), g(rows, w.size(0))
    if not A.fp8:
        def run(): torch.mm(x, w.t()); torch.mm(y, w); torch.mm(y.t(), x, out_dtype=torch.float32)
        return run
    x8, y8, w8, xt8, yt8, wt8 = map(q, (x, y, w, x.t(), y.t(), w.t()))
    def run():
        mm8(x8, w8, torch.bfloat16); mm8(y8, wt8, torch.bfloat16)
        torch._scaled_mm(yt8, xt8.t(), scale_a=s, scale_b=s, out_dtype=torch.float32, use_fast_accum=False)
    return run
last = [product(W["qkv"][H:], T), *(product(w, A.rows) for w in (W["qkv"][:H], W["o"], W["gu"], W["down"]))]
own = A.rows // B
lastQ, lastgo = g(B, nh, own, hd).requires_grad_(), g(B, nh, own, hd)
keys = [(g(B, nk, n, hd).requires_grad_(), g(B, nk, n, hd).requires_grad_(), causal) for n, causal in ((S - own, False), (own, True)) if n]
def last_layer():
    for run in last: run()
    for k, v, causal in keys: att(lastQ, k, v, lastgo, causal, True)
    for _ in range(4): buf2.copy_(buf)
"""
LAYERS = """    for _ in range(L):
        for k in shapes: lin(k)
        att(Q, K, Vv, go, True, True)
        for _ in range(4): buf2.copy_(buf)
"""
STEP = "def step():\n"
CAST = "q = lambda t: t.to(f8).contiguous()"
SCALED = "q = lambda t: (t.float() * (448 / t.abs().max().float())).to(f8).contiguous()"


def as_in_training(text):
    """(the program's text with both changes, names of those that it has no place for)"""
    left = []
    if text.count(LAYERS) == 1 and text.count(STEP) == 1:
        text = text.replace(LAYERS, LAYERS.replace("range(L):", "range(L - 1):") + "    last_layer()\n").replace(STEP, LAST_LAYER.lstrip() + STEP)
    else:
        left.append("last layer")
    if text.count(CAST) == 1:
        text = text.replace(CAST, SCALED)
    else:
        left.append("scaled operands")
    return text, left


def rates_of(program, names, flags):
    """Tokens a second of each board; None: not all of them have said so."""
    processes = [subprocess.Popen([sys.executable, program, *flags], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "CUDA_VISIBLE_DEVICES": name}) for name in names]
    texts = [process.communicate()[0] for process in processes]
    print(*(text.strip() for text in texts), sep="\n", flush=True)
    rates = [int(rate.replace(",", "")) for text in texts for rate in re.findall(r"([\d,]+) tokens/s a GPU", text)]
    return rates if len(rates) == len(names) and not any(process.returncode for process in processes) else None


def main():
    devices, flags = int(sys.argv[1]), sys.argv[2:]
    names = (boards.visible() or [str(device) for device in range(devices)])[:devices]
    text, left = as_in_training(pathlib.Path(os.environ["LIMIT"]).read_text())
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "limit_as_in_training.py"
        program.write_text(text)
        rates = rates_of(program, names, flags)
    if rates is None:
        print("as in training it has failed; as it is:", flush=True)
        left, rates = ["last layer", "scaled operands"], rates_of(os.environ["LIMIT"], names, flags)
    if rates is None:
        return 1
    print(f"limit: {devices * min(rates):,} tokens/s on {devices}" + (f"; not as in training: {', '.join(left)}" if left else ""))
    print(json.dumps({"tokens_per_s": devices * min(rates), "each": rates, "as_is": left}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
