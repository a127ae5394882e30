"""Which GPUs of this machine the scripts here use and look at: those of CUDA_VISIBLE_DEVICES where that is set, else all. So two runs on
two GPUs each stand side by side on a machine with four, each with its own WORK and OUTPUT."""
import os


def visible():
    """Their numbers or UUIDs, in CUDA's order; None: all."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def query(fields, *more):
    """The command that asks nvidia-smi for these fields of them, a line each."""
    chosen = visible()
    return ["nvidia-smi", *(["-i", ",".join(chosen)] if chosen else []), f"--query-gpu={fields}", *more]
