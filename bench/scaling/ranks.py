"""Looks at the ranks of a running job from outside: memory and descriptors, by the kernel's files.

Owns when a job counts as settled. Never changes a rank. Called by `run`. Linux only.
"""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass

FIELDS = ("RssAnon", "RssShmem", "RssFile")
LOOK_S = 0.1  # between two looks
SETTLED = 3  # looks in a row that find the same


@dataclass
class Rank:
    """One rank as it was, memory in KiB."""

    rank: int
    anon: int  # its own memory
    shmem: int  # shared memory it has touched
    file: int  # mapped files: the program itself
    sockets: int
    descriptors: int  # all, sockets included


class Failed(Exception):
    """The job ended before it could be looked at."""


def children(parent):
    """Numbers of the living processes that `parent` started."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                state, its_parent = stat.read().rsplit(")", 1)[1].split()[:2]
        except OSError:  # it has just ended
            continue
        if int(its_parent) == parent and state not in "ZX":
            found.append(int(name))
    return found


def look(pid):
    """One process, or None if it is no rank (yet) or has just ended."""
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as environ:
            variables = dict(
                entry.split("=", 1) for entry in environ.read().split("\0") if "=" in entry
            )
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            lines = dict(line.split(":", 1) for line in status.read().splitlines())
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        memory = [int(lines[field].split()[0]) for field in FIELDS]
        return Rank(
            int(variables["RANK"]), *memory, sum(link.startswith("socket:") for link in links),
            len(links),
        )
    except (OSError, KeyError, ValueError):
        return None


def settled(argv, environment, count, limit_s):
    """Starts a job of `count` ranks that goes on, looks at it once nothing changes, and ends it."""
    child = subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )
    try:
        deadline, before, same = time.monotonic() + limit_s, None, 0
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            if child.poll() is not None:
                said = child.stderr.read().strip().splitlines()
                raise Failed(f"exit code {child.returncode}; {said[-1] if said else 'silent'}")
            now = [rank for rank in map(look, children(child.pid)) if rank is not None]
            now.sort(key=lambda rank: rank.rank)
            key = [(rank.descriptors, rank.shmem) for rank in now]
            same = same + 1 if key == before and len(now) == count else 0
            before = key
            if same >= SETTLED:
                return now
        raise Failed(f"did not settle within {limit_s} s")
    finally:
        end(child)


def timed(argv, environment, limit_s):
    """Seconds that a job takes from start to end. A wait with a time limit would look only now and
    then; this one returns at once."""
    start = time.monotonic()
    child = subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )
    limit = threading.Timer(limit_s, child.terminate)
    limit.start()
    try:
        code = child.wait()
    finally:
        limit.cancel()
        if child.poll() is None:
            child.terminate()
    if code != 0:
        raise Failed(f"exit code {code}")
    return time.monotonic() - start


def end(child):
    """Ends the launcher, which ends its ranks."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()  # the kernel ends its ranks
            child.wait()
    child.stderr.close()
