"""Tests of what needs no MPI: python3 -m unittest discover bench/peers"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import machine  # noqa: E402
import table  # noqa: E402

loader = importlib.machinery.SourceFileLoader("peers_run", os.path.join(HERE, "run"))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers_run", loader))
loader.exec_module(run)

# Answers as `syncline perf` does; as slow and as wrong as its environment says.
STAND_IN = """#!{python}
import json, os, sys
words = sys.argv
size = int(words[words.index("-b") + 1])
row = dict(collective=words[2], ranks=int(words[words.index("-n") + 1]), transport="shm",
           algorithm="node", bytes=size, count=size // 4, dtype="f32", op="sum", root=-1,
           iterations=5, p50_us=10.0, p99_us=20.0, min_us=9.0, algbw_gbps=size / 1e4,
           busbw_gbps=size / 1e4, wrong=int(os.environ.get("STAND_IN_WRONG", "0")))
assert "RANK" not in os.environ, "another launcher's rank"
with open(words[words.index("--json") + 1], "w") as report:
    json.dump(dict(rows=[row]), report)
"""


def row(library, number, p50_us, **more):
    base = dict(
        collective="all_reduce", ranks=2, bytes=1000, library=library, round=number,
        transport="shm", algorithm="ring", version="1", p50_us=p50_us, p99_us=p50_us,
        min_us=p50_us, algbw_gbps=1 / p50_us, busbw_gbps=1 / p50_us, wrong=0,
        others_cores=0.0, steal_cores=0.0, pingpong_ns=None,
    )
    return {**base, **more}


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Sizes(unittest.TestCase):
    def test_are_read_and_written_alike(self):
        for text, count in (("8", 8), ("4K", 4096), ("64M", 64 << 20), ("1GiB", 1 << 30)):
            self.assertEqual(run.parse_bytes(text), count)
        for text in ("1000", "1K", "3M", "256M", "1G"):
            self.assertEqual(table.size_text(run.parse_bytes(text)), text)
        for text in ("", "K", "-1", "0", "1T", "1.5M"):
            with self.assertRaises(argparse.ArgumentTypeError):
                run.parse_bytes(text)


class Summary(unittest.TestCase):
    def test_ratios_are_paired_by_round(self):
        # Round 1 was slow for both: the ratio of medians would tell nothing of that.
        rows = [row("syncline", 0, 10), row("peer", 0, 20), row("syncline", 1, 100),
                row("peer", 1, 300), row("syncline", 2, 11), row("peer", 3, 1)]
        ours, peer = table.summarize(rows)
        self.assertIsNone(ours["ratio"])
        self.assertEqual((peer["ratio"], peer["ratio_min"], peer["ratio_max"]), (2.5, 2, 3))
        self.assertEqual(peer["ratio_best"], 0.1)
        self.assertEqual((ours["p50_us"], ours["p50_us_max"], ours["rounds"]), (11, 100, 3))
        self.assertAlmostEqual(ours["algbw_gbps"], 1000 / 11 / 1e3)

    def test_busy_figures_are_marked(self):
        quiet = table.render(table.summarize([row("peer", 0, 1)]))
        busy = table.render(table.summarize([row("peer", 0, 1, steal_cores=0.2)]))
        self.assertNotIn("*", quiet)
        self.assertIn("0.20*", busy)


class BoundedRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        machine.adopt_orphans()

    def test_own_work_is_not_the_load_of_others(self):
        spin = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
        outcome = machine.bounded_run([sys.executable, "-c", spin], None, 30)
        self.assertEqual((outcome.code, outcome.leftovers), (0, 0))
        self.assertGreater(outcome.own_cores * outcome.wall_s, 0.45)

    def test_time_out_ends_the_whole_tree(self):
        # Grandchildren in sessions of their own, one orphaned, one deaf to SIGTERM.
        deaf = "setsid sh -c 'trap : TERM; while :; do sleep 1; done'"
        script = f"(setsid sleep 99 & echo $!); {deaf} & echo $!; wait"
        start = time.monotonic()
        outcome = machine.bounded_run(["sh", "-c", script], None, 1)
        self.assertEqual(outcome.code, machine.EXIT_TIMED_OUT)
        self.assertLess(time.monotonic() - start, 8)
        pids = [int(word) for word in outcome.stdout.split()]
        self.assertEqual(len(pids), 2)
        self.assertFalse([pid for pid in pids if alive(pid)])

    def test_shared_memory_of_ended_programs_goes(self):
        script = """if True:
            import mmap, tempfile, time
            with tempfile.NamedTemporaryFile(dir="/dev/shm", delete=False) as file:
                file.write(b"x" * 4096)
                file.flush()
                segment = mmap.mmap(file.fileno(), 4096)
            print(file.name, flush=True)
            time.sleep(99)"""
        outcome = machine.bounded_run([sys.executable, "-c", script], None, 2)
        path = outcome.stdout.strip()
        self.assertTrue(path.startswith("/dev/shm/"), outcome)
        self.assertFalse(os.path.exists(path))

    def test_what_outlives_its_program_is_ended_and_counted(self):
        outcome = machine.bounded_run(["sh", "-c", "setsid sleep 99 & echo $!"], None, 30)
        self.assertEqual((outcome.code, outcome.leftovers), (0, 1))
        self.assertFalse(alive(int(outcome.stdout)))


class Command(unittest.TestCase):
    def compare(self, *words, **variables):
        with tempfile.TemporaryDirectory() as folder:
            stand_in = os.path.join(folder, "syncline")
            with open(stand_in, "w", encoding="ascii") as file:
                file.write(STAND_IN.format(python=sys.executable))
            os.chmod(stand_in, stat.S_IRWXU)
            options = ["--dir", folder, "--syncline", stand_in, "--json", "-", "--rounds", "2"]
            ended = subprocess.run(
                [os.path.join(HERE, "run"), *options, *words], capture_output=True, text=True,
                env={**os.environ, "RANK": "3", **variables}, timeout=60, check=False,
            )
        return ended.returncode, json.loads(ended.stdout), ended.stderr

    def test_measures_ours_alone_and_says_what_was_skipped(self):
        code, report, text = self.compare("--ranks", "2,3", "--sizes", "1K,1M")
        self.assertEqual(code, 0, text)
        self.assertEqual(len(report["rows"]), 2 * 2 * 2)
        self.assertEqual([line["bytes"] for line in report["summary"]], [1024, 1 << 20] * 2)
        self.assertTrue(any(text.startswith("openmpi5:") for text in report["skipped"]))

    def test_wrong_elements_fail(self):
        words = ("--ranks", "2", "--sizes", "1K", "--libraries", "syncline")
        code, report, _text = self.compare(*words, STAND_IN_WRONG="7")
        self.assertEqual((code, report["summary"][0]["wrong"]), (1, 14))
        self.assertEqual(len(report["failures"]), 2)


if __name__ == "__main__":
    unittest.main()
