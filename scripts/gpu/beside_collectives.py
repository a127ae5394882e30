#!/usr/bin/env python3
"""How much slower products are while collectives run beside them, and what collectives draw alone.

    python3 -m torch.distributed.run --standalone --nproc-per-node GPUS scripts/gpu/beside_collectives.py [SECONDS]

One after the other, SECONDS (6) each, on all GPUs at once: products alone, beside each of the following, products alone again, then each of the following alone.
  sums          of gradients, a share to each rank (reduce-scatter, fp32)
  sums for all  of gradients, to all ranks (all-reduce, fp32)
  messages      of a share of gradients to the next rank
  gathers       of weights (all-gather, bf16)
  copies        of a share of gradients from the next rank's memory by copy engines
  additions     of two shares of gradients, which copies need to become sums
A line of JSON each, of the first rank: milliseconds of a round of 40 products, gigabytes that come past a rank in it (of additions: those of
one operand), gigabytes a second, watts by nvidia-smi. A round has eight calls: on two GPUs 4.3 GB of sums, messages, copies or additions, twice as many of sums for all and half as many
of gathers, about as much for the time of its products as in a step of the 5B decoder in data parallel.
"""
import json
import os
import subprocess
import sys
import threading
import time

# As ranks have it (worker/comm/nccl_world.cc).
for name, value in (("NCCL_NVLS_ENABLE", "0"), ("NCCL_ALGO", "Ring"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")):
    os.environ.setdefault(name, value)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as symmetric_memory  # noqa: E402

ELEMENTS = 1 << 28  # of all ranks together
PRODUCTS, CALLS = 40, 8  # of a round
CALLS_ALONE = 40


class Load:
    def __init__(self):
        # As many bits change as in training: random values, not zeros.
        self.x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
        self.w = torch.randn(4096, 14336, device="cuda", dtype=torch.bfloat16)
        self.y = torch.empty(16384, 14336, device="cuda", dtype=torch.bfloat16)
        self.ranks, self.share = dist.get_world_size(), ELEMENTS // dist.get_world_size()
        self.next, self.last = ((dist.get_rank() + step) % self.ranks for step in (1, -1))
        self.gradients, self.sums = torch.randn(ELEMENTS, device="cuda"), torch.empty(self.share, device="cuda")
        self.mean = torch.randn(ELEMENTS, device="cuda")
        self.weights = torch.randn(ELEMENTS, device="cuda", dtype=torch.bfloat16)
        self.own = self.weights[:self.share].clone()
        self.mine = symmetric_memory.empty(self.share, dtype=torch.float32, device="cuda").normal_()
        self.theirs = symmetric_memory.rendezvous(self.mine, dist.group.WORLD).get_buffer(self.next, (self.share,), torch.float32)
        self.taken = torch.randn(self.share, device="cuda")
        self.kinds = {"sums": self.reduce, "sums for all": self.reduce_for_all, "messages": self.exchange, "gathers": self.gather, "copies": self.copy,
                      "additions": self.add}

    def products(self):
        for _ in range(PRODUCTS):
            torch.mm(self.x, self.w, out=self.y)

    # Each: bytes that it carries past a rank.
    def reduce(self):
        dist.reduce_scatter_tensor(self.sums, self.gradients)
        return 4 * self.share * (self.ranks - 1)

    def reduce_for_all(self):
        dist.all_reduce(self.mean, op=dist.ReduceOp.AVG)
        return 2 * 4 * self.share * (self.ranks - 1)

    def exchange(self):
        for message in dist.batch_isend_irecv([dist.P2POp(dist.isend, self.mine, self.next), dist.P2POp(dist.irecv, self.taken, self.last)]):
            message.wait()
        return 4 * self.share

    def gather(self):
        dist.all_gather_into_tensor(self.weights, self.own)
        return 2 * self.share * (self.ranks - 1)

    def copy(self):
        self.taken.copy_(self.theirs)
        return 4 * self.share

    def add(self):
        torch.add(self.mine, self.taken, out=self.sums)
        return 4 * self.share


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
    """`products`: whether they are computed; `kind` is "" where nothing is beside them."""
    beside, carries = torch.cuda.Stream(priority=-1), load.kinds.get(kind)
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
        if carries:
            with torch.cuda.stream(beside):
                carried += sum(carries() for _ in range(CALLS if products else CALLS_ALONE))
            torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()
        rounds += 1
    took = time.monotonic() - begin
    return {"products": products, "beside": kind or "nothing", "ms_a_round": round(1e3 * took / rounds, 3), "gb_a_round": round(carried / rounds / 1e9, 3),
            "gb_per_s": round(carried / took / 1e9, 2), "watts": watts.mean()}


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
    load = Load()
    load.exchange()  # which connects
    for products, kind in [(True, ""), *((True, kind) for kind in load.kinds), (True, ""), *((False, kind) for kind in load.kinds)]:
        figures = measure(load, products, kind, seconds, device)
        if dist.get_rank() == 0:
            print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
