#!/usr/bin/env python3
"""How much slower products are while collectives run beside them, and what collectives draw alone.

    python3 -m torch.distributed.run --standalone --nproc-per-node GPUS scripts/gpu/beside_collectives.py [SECONDS]

One after the other, SECONDS (6) each, on all GPUs at once: products alone, beside sums of gradients (reduce-scatter, fp32), beside gathers of weights (all-gather,
bf16), products alone again, then both collectives alone. A line of JSON each, of the first rank: products a second, gigabytes a second that
collectives carry past a rank, watts by nvidia-smi. 8 collectives of 1 GB come to 40 products, about as many bytes for their time as in a step of the 5B
decoder in data parallel.
"""
import json
import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

ELEMENTS = 1 << 28  # of all ranks together
PRODUCTS, COLLECTIVES = 40, 8  # of a round


class Load:
    def __init__(self):
        # As many bits change as in training: random values, not zeros.
        self.x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
        self.w = torch.randn(4096, 14336, device="cuda", dtype=torch.bfloat16)
        self.y = torch.empty(16384, 14336, device="cuda", dtype=torch.bfloat16)
        self.ranks, self.share = dist.get_world_size(), ELEMENTS // dist.get_world_size()
        self.gradients, self.sums = torch.randn(ELEMENTS, device="cuda"), torch.empty(self.share, device="cuda")
        self.weights = torch.randn(ELEMENTS, device="cuda", dtype=torch.bfloat16)
        self.own = self.weights[:self.share].clone()

    def products(self):
        for _ in range(PRODUCTS):
            torch.mm(self.x, self.w, out=self.y)

    def collective(self, kind):
        """Bytes that it carries past each rank."""
        if kind == "sums":
            dist.reduce_scatter_tensor(self.sums, self.gradients)
            return 4 * self.share * (self.ranks - 1)
        dist.all_gather_into_tensor(self.weights, self.own)
        return 2 * self.share * (self.ranks - 1)


class Watts:
    """Of a device, by nvidia-smi, twice a second from `since` seconds on, while the load goes on. Nobody waits for an answer."""

    def __init__(self, device, since):
        self.query = ["nvidia-smi", "-i", str(device), "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
        self.since, self.over, self.readings = since, threading.Event(), []
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        pause = self.since
        while not self.over.wait(pause):
            self.readings.append(float(subprocess.run(self.query, capture_output=True, text=True, check=True, timeout=10).stdout))
            pause = 0.5

    def mean(self):
        self.over.set()
        self.thread.join()
        return sum(self.readings) / len(self.readings) if self.readings else None


def measure(load, products, kind, seconds, device):
    beside = torch.cuda.Stream()
    dist.barrier()
    torch.cuda.synchronize()
    begin, rounds, carried, watts = time.monotonic(), 0, 0, Watts(device, seconds / 3)
    while True:
        over = torch.tensor(float(time.monotonic() - begin > seconds), device="cuda")
        dist.all_reduce(over, op=dist.ReduceOp.MAX)  # all end in the same round
        if over.item() > 0:
            break
        if products:
            load.products()
        if kind:
            with torch.cuda.stream(beside):
                carried += sum(load.collective(kind) for _ in range(COLLECTIVES if products else PRODUCTS))
            torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()
        rounds += 1
    took = time.monotonic() - begin
    return {"products": products, "beside": kind or "nothing", "products_per_s": round(PRODUCTS * rounds / took, 2) if products else 0,
            "gb_per_s": round(carried / took / 1e9, 2), "watts": watts.mean()}


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
    load = Load()
    for products, kind in ((True, ""), (True, "sums"), (True, "gathers"), (True, ""), (False, "sums"), (False, "gathers")):
        figures = measure(load, products, kind, seconds, device)
        if dist.get_rank() == 0:
            print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
