"""Times Gloo's collectives through PyTorch as `syncline perf` times its own.

The same method and the same rows as mpi_collectives.c, see there. Called by `run`:
    python gloo_collectives.py all_reduce -n 2 -s 1M --budget-ms 300 -w 3
Starts its ranks itself. Gloo goes over TCP on the loopback interface, whatever the host offers.
The loop is Python: about a microsecond of every figure is the interpreter's.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

ITERATIONS_MIN, ITERATIONS_MAX = 5, 20000


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("collective", choices=list(CALLS))
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("-s", type=int, required=True, help="bytes")
    parser.add_argument("--budget-ms", type=float, default=300)
    parser.add_argument("-w", type=int, default=3)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    return parser.parse_args()


def start_ranks(options):
    """One process a rank; the first failure, or SIGTERM, ends the others. Returns the exit code."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    living = []
    with tempfile.TemporaryDirectory() as folder:
        store = ["--store", os.path.join(folder, "store")]
        command = [sys.executable, *sys.argv, *store, "--rank"]
        try:
            for rank in range(options.n):
                living.append(subprocess.Popen([*command, str(rank)]))
            code = 0
            while living and code == 0:
                time.sleep(0.02)
                code = next((rank.returncode for rank in living if rank.poll()), 0)
                living = [rank for rank in living if rank.returncode is None]
        finally:
            for rank in living:
                rank.kill()
                rank.wait()
        return code


def all_reduce(dist, _input, output):
    dist.all_reduce(output)


def all_gather(dist, own, output):
    dist.all_gather_into_tensor(output, own)


def broadcast(dist, _input, output):
    dist.broadcast(output, 0)


def reduce_scatter(dist, own, output):
    dist.reduce_scatter_tensor(output, own)


def all_to_all(dist, own, output):
    dist.all_to_all_single(output, own)


CALLS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "broadcast": broadcast,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
}


class Measurement:
    """One collective at one size on this rank."""

    def __init__(self, torch, options):
        self.torch, self.dist, self.options = torch, torch.distributed, options
        elements, n = max(1, options.s // 4), options.n
        share = max(1, elements // n)
        self.inputs, self.outputs = {
            "all_gather": (share, share * n),
            "reduce_scatter": (share * n, share),
            "all_to_all": (share * n, share * n),
        }.get(options.collective, (0, elements))
        self.share = share
        self.input = torch.zeros(self.inputs)
        self.output = torch.zeros(self.outputs)

    def value(self, rank, first, count):
        """Small integers: sums over many ranks are exact."""
        index = self.torch.arange(first + rank, first + rank + count)
        return (index % 3).to(self.torch.float32)

    def fill(self):
        rank = self.options.rank
        self.output.fill_(7.0)
        data = self.input if self.inputs else self.output
        data.copy_(self.value(rank, 0, data.numel()))

    def call(self):
        CALLS[self.options.collective](self.dist, self.input, self.output)

    def wrong(self):
        """Elements of this rank that are not what they should be."""
        collective, n, rank = self.options.collective, self.options.n, self.options.rank
        if collective == "broadcast":
            expected = self.value(0, 0, self.outputs)
        elif collective == "all_gather":
            expected = self.torch.cat([self.value(r, 0, self.share) for r in range(n)])
        elif collective == "all_to_all":
            first = rank * self.share
            expected = self.torch.cat([self.value(r, first, self.share) for r in range(n)])
        else:
            first = rank * self.share if collective == "reduce_scatter" else 0
            expected = sum(self.value(r, first, self.outputs) for r in range(n))
        return int((self.output != expected).sum())

    def agree_on_iterations(self):
        self.dist.barrier()
        start = time.perf_counter()
        for _ in range(2):
            self.call()
        once = self.torch.tensor([(time.perf_counter() - start) / 2], dtype=self.torch.float64)
        self.dist.all_reduce(once, op=self.dist.ReduceOp.MAX)
        fit = self.options.budget_ms / 1e3 / max(float(once), 1e-7)
        return int(min(max(fit, ITERATIONS_MIN), ITERATIONS_MAX))

    def run(self):
        self.fill()
        self.call()
        wrong = self.wrong()
        for _ in range(self.options.w):
            self.call()
        iterations = self.agree_on_iterations()
        times = [0.0] * iterations
        call = self.call
        self.dist.barrier()
        last = time.perf_counter()
        for i in range(iterations):
            call()
            now = time.perf_counter()
            times[i] = (now - last) * 1e6
            last = now
        slowest = self.torch.tensor(times, dtype=self.torch.float64)
        self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX)
        self.fill()
        self.call()
        wrongs = self.torch.tensor([wrong + self.wrong()], dtype=self.torch.int64)
        self.dist.all_reduce(wrongs)
        return self.row(sorted(slowest.tolist()), int(wrongs))

    def row(self, times, wrong):
        collective, n = self.options.collective, self.options.n
        count = max(self.inputs, self.outputs)
        factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(collective, (n - 1) / n)
        p50_us = percentile(times, 0.5)
        algbw_gbps = count * 4 / p50_us / 1e3
        return {
            "collective": collective,
            "ranks": n,
            "transport": "tcp",
            "algorithm": "default",
            "version": f"Gloo of PyTorch {self.torch.__version__}",
            "bytes": count * 4,
            "count": count,
            "dtype": "f32",
            "op": "sum" if "reduce" in collective else "none",
            "root": 0 if collective == "broadcast" else -1,
            "iterations": len(times),
            "p50_us": p50_us,
            "p99_us": percentile(times, 0.99),
            "min_us": times[0],
            "algbw_gbps": algbw_gbps,
            "busbw_gbps": algbw_gbps * factor,
            "wrong": wrong,
        }


def percentile(ascending, part):
    return ascending[int((len(ascending) - 1) * part + 0.5)]


def main():
    options = parse()
    if options.rank is None:
        return start_ranks(options)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=options.n
    )
    row = Measurement(torch, options).run()
    if options.rank == 0:
        print("PEER-ROW " + json.dumps(row), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
