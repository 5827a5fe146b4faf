"""Runs one program at a time, bounded, and says what the rest of the machine did meanwhile.

Owns priorities, deadlines, ending what was started, and the load figures. Never knows what is
measured. Called by `run`. Linux only: /proc, sessions as scheduling groups, child subreaper.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
AUTOGROUP = "/proc/self/autogroup"
EXIT_TIMED_OUT = 124
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Outcome:
    """How a program ended, and the load of the machine while it ran, in cores."""

    code: int
    stdout: str
    stderr: str
    wall_s: float
    own_cores: float
    others_cores: float  # every other process and interrupts, without steal
    steal_cores: float  # taken by the hypervisor
    leftovers: int  # processes that outlived the program and were ended

    def why(self):
        """One line on a failure: the exit and the last thing said."""
        lines = [line for line in self.stderr.splitlines() if line.strip(" -=*")]
        said = lines[-1].strip()[:160] if lines else "nothing on stderr"
        if self.code == EXIT_TIMED_OUT:
            return f"timed out after {self.wall_s:.0f} s; {said}"
        return f"exit code {self.code}; {said}"


def adopt_orphans():
    """Makes orphaned grandchildren children of this process, so that none escapes."""
    if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def can_prioritize(nice):
    """Whether a session of ours may have this autogroup priority; tried out on a child."""

    def write():
        _prioritize(nice)
        with open(AUTOGROUP, encoding="ascii") as group:
            assert group.read().split()[-1] == str(nice)

    try:
        subprocess.run(["true"], start_new_session=True, preexec_fn=write, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def bounded_run(argv, env, timeout_s, nice=None):
    """Runs a program in a session of its own until it ends or time is up; ends its tree.

    `nice` is the priority of its scheduling group, None for the usual one. Nothing it started
    lives on when this returns or raises.
    """

    def prepare():
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # launchers end their ranks
        if nice is not None:
            _prioritize(nice)

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        busy, steal, own, start = *_machine_seconds(), _own_seconds(), time.monotonic()
        try:
            child = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, preexec_fn=prepare,
            )
            code = child.wait(timeout_s)
            wall_s = time.monotonic() - start
        except subprocess.TimeoutExpired:
            code, wall_s = EXIT_TIMED_OUT, time.monotonic() - start
        finally:
            leftovers = end_descendants()
        child.poll()  # reaped above already; now it knows
        # The window ends after the tree has, or its last moments would count as others' work.
        window_s = time.monotonic() - start
        busy_after, steal_after = _machine_seconds()
        own = _own_seconds() - own
        return Outcome(
            code=code,
            stdout=_text(out),
            stderr=_text(err),
            wall_s=wall_s,
            own_cores=own / window_s,
            others_cores=max(0.0, (busy_after - busy - own) / window_s),
            steal_cores=max(0.0, (steal_after - steal) / window_s),
            leftovers=leftovers,
        )


def idle_wait(limit_s, cores, step_s=1.0):
    """Waits until the machine uses fewer than so many cores, at most so long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before, start = _machine_seconds()[0], time.monotonic()
        time.sleep(step_s)
        if (_machine_seconds()[0] - before) / (time.monotonic() - start) < cores:
            return


def end_descendants(grace_s=1.0):
    """Ends every process below this one, by number; returns how many there were.

    Removes the shared-memory files that they had mapped: an ended rank cannot do that itself.
    """
    _reap()
    found, segments = set(), set()
    try:
        _end(found, segments, grace_s)
    finally:
        for path in segments:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return len(found)


def _end(found, segments, grace_s):
    """Asks, then kills; fills in whom it found and their shared-memory files."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace_s
        told = set()
        while True:
            living = _descendants(os.getpid())
            for pid in living - found:
                segments |= _segments(pid)
            found |= living
            for pid in living - told:
                told.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, number)
            _reap()
            if not living:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)


def _segments(pid):
    """Files in /dev/shm that a process has mapped and nobody has removed."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if " /dev/shm/" in line}
    except OSError:  # it has just ended
        return set()
    return {path for path in paths if not path.endswith(" (deleted)")}


def _prioritize(nice):
    with open(AUTOGROUP, "w", encoding="ascii") as group:
        group.write(str(nice))


def _descendants(root):
    """Numbers of the living processes below `root`; the dead but unreaped are left out."""
    children = {}
    dead = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                state, parent = stat.read().rsplit(")", 1)[1].split()[:2]
        except OSError:  # it has just ended
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in "ZX":
            dead.add(int(name))
    below, queue = set(), [root]
    while queue:
        for child in children.get(queue.pop(), []):
            below.add(child)
            queue.append(child)
    return below - dead


def _reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def _own_seconds():
    """CPU time of this process and of all descendants that have been reaped."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def _machine_seconds():
    """Busy and stolen CPU time of the machine since it started, all CPUs together."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(
            int, stat.readline().split()[1:9]
        )
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_s, steal * tick_s


def _text(file):
    file.seek(0)
    return file.read().decode("utf-8", "replace")
