"""The libraries compared: how each is installed, what it cannot do, how its ranks are started.

Owns flags and variables; runs nothing itself except installers. Called by `run`. A library is
described by one class; `LIBRARIES` gives their order in tables.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ROW_MARK = "PEER-ROW "
INSTALL_TIMEOUT_S = 900
# Variables by which a launcher around us would tell our ranks that they are its own.
FOREIGN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HYDRA_", "MPI_LOCAL", "I_MPI_")
FOREIGN_NAMES = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}


class Unusable(Exception):
    """A library gave no figure; the text says why."""


@dataclass(frozen=True)
class Request:
    """One measurement."""

    collective: str
    ranks: int
    bytes: int
    transport: str  # shm or tcp
    budget_ms: int
    warmup: int
    nice: int  # priority of the scheduling group; 0 leaves it
    scratch: str  # folder for files of this measurement


def cpus():
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def clean_environment():
    """Ours, without what other launchers put there."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in FOREIGN_NAMES
    }
    environment["OMP_NUM_THREADS"] = "1"
    return environment


class Library:
    """What is common; `folder` is the one that --dir names."""

    name = ""
    proof = ""  # part of the version string, shows that this very library was loaded

    def __init__(self, options):
        self.options, self.folder = options, options.dir

    def install(self):
        """Brings it onto this machine. Raises Unusable if it cannot."""

    def missing(self):
        """Why it cannot be used at all, or None."""
        raise NotImplementedError

    def refusal(self, request):
        """Why it cannot do this request, or None."""
        return None

    def command(self, request):
        """The program to run and its environment."""
        raise NotImplementedError

    def row(self, request, outcome):
        """The row that a run that ended well has printed. Raises Unusable."""
        lines = [line for line in outcome.stdout.splitlines() if line.startswith(ROW_MARK)]
        if len(lines) != 1:
            raise Unusable(f"printed {len(lines)} rows instead of one")
        row = json.loads(lines[0][len(ROW_MARK):])
        if self.proof not in row["version"]:
            raise Unusable(f"ran with {row['version']!r} instead of {self.proof!r}")
        return row


class Mpi(Library):
    """An MPI from a Python package, in a virtual environment of its own."""

    package = ""
    own_compiler = True  # else MPICH's is used, whose programs it runs as well

    @property
    def prefix(self):
        return os.path.join(self.folder, self.name)

    @property
    def program(self):
        return os.path.join(self.folder, "bin", f"mpi_collectives.{self.name}")

    def launcher(self):
        """Path of the program that starts ranks, or None."""
        return shutil.which("mpiexec", path=os.path.join(self.prefix, "bin"))

    def compiler(self):
        """Path of its C compiler, or None."""
        folder = self.prefix if self.own_compiler else os.path.join(self.folder, Mpich5.name)
        return shutil.which("mpicc", path=os.path.join(folder, "bin"))

    def install(self):
        if self.launcher() is None:
            install_package(self.prefix, self.package)
        self.build()

    def missing(self):
        if self.launcher() is None or self.compiler() is None:
            return f"not in {self.folder}: use --setup"
        try:
            self.build()
        except Unusable as error:
            return str(error)
        return None

    def build(self):
        """Compiles the measuring program unless it is newer than its source."""
        compiler = self.compiler()
        if compiler is None:
            raise Unusable(f"{self.name}: no mpicc")
        build("mpi_collectives.c", self.program, compiler)

    def arguments(self, request):
        return [
            self.program, request.collective, "-s", str(request.bytes),
            "--budget-ms", str(request.budget_ms), "-w", str(request.warmup),
            "--transport", request.transport, "--nice", str(request.nice),
        ]


class OpenMpi5(Mpi):
    """Without binding and with --oversubscribe its ranks yield while they wait."""

    name, package, proof = "openmpi5", "openmpi>=5,<6", "Open MPI v5"
    shared_memory = "sm"

    def command(self, request):
        layers = {
            "shm": ["--mca", "btl", f"{self.shared_memory},self"],
            "tcp": ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"],
        }[request.transport]
        environment = clean_environment()
        if os.geteuid() == 0:
            environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
            environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        ranks = ["-n", str(request.ranks), "--oversubscribe", "--bind-to", "none"]
        ranks += ["--mca", "pml", "ob1", *layers]
        return [self.launcher(), *ranks, *self.arguments(request)], environment


class OpenMpi4(OpenMpi5):
    """The distribution's; never installed from here."""

    name, package, proof = "openmpi4", "", "Open MPI v4"
    shared_memory = "vader"

    def launcher(self):
        return shutil.which("mpirun.openmpi")

    def compiler(self):
        return shutil.which("mpicc.openmpi")

    def install(self):
        if self.launcher() is None or self.compiler() is None:
            raise Unusable("not installed; Debian and Ubuntu: openmpi-bin, libopenmpi-dev")
        self.build()

    def missing(self):
        if self.launcher() is None or self.compiler() is None:
            return "no mpirun.openmpi and mpicc.openmpi (Debian: openmpi-bin, libopenmpi-dev)"
        return super().missing()


class IntelMpi(Mpi):
    """Runs programs built for MPICH: both keep to one binary interface."""

    name, package, proof = "intelmpi", "impi-rt", "Intel(R) MPI"
    own_compiler = False

    def install(self):
        Mpich5(self.options).install()
        super().install()

    def launcher(self):
        return shutil.which("mpiexec.hydra", path=os.path.join(self.prefix, "bin"))

    def refusal(self, request):
        if request.transport != "shm":
            return "cannot be kept from shared memory within a host"
        return None

    def command(self, request):
        libraries = os.path.join(self.prefix, "lib")
        environment = clean_environment()
        environment.update(
            I_MPI_ROOT=self.prefix, LD_LIBRARY_PATH=libraries, FI_PROVIDER_PATH=libraries,
            I_MPI_FABRICS="shm", I_MPI_PIN="0", I_MPI_HYDRA_BOOTSTRAP="fork",
        )
        return [self.launcher(), "-n", str(request.ranks), *self.arguments(request)], environment


class Mpich5(Mpi):
    """Waits without yielding: of use only where every rank has a CPU."""

    name, package, proof = "mpich5", "mpich>=5,<6", "MPICH Version"

    def refusal(self, request):
        if request.transport != "shm":
            return "measured over shared memory only"
        if request.ranks > max(2, cpus()):
            return f"spins without yielding: {request.ranks} ranks on {cpus()} CPUs tell nothing"
        return None

    def command(self, request):
        ranks = ["-launcher", "fork", "-n", str(request.ranks)]
        return [self.launcher(), *ranks, *self.arguments(request)], clean_environment()


class Gloo(Library):
    """Through somebody's PyTorch, never installed from here. TCP also within a host."""

    name, proof = "gloo", "Gloo"

    def __init__(self, options):
        super().__init__(options)
        self.python = options.torch

    def missing(self):
        if self.python is None:
            return "no --torch PYTHON given"
        if shutil.which(self.python) is None:
            return f"{self.python} is no program"
        return None

    def command(self, request):
        script = os.path.join(HERE, "gloo_collectives.py")
        arguments = [
            "-n", str(request.ranks), "-s", str(request.bytes),
            "--budget-ms", str(request.budget_ms), "-w", str(request.warmup),
        ]
        return [self.python, script, request.collective, *arguments], clean_environment()


class Syncline(Library):
    """Ours: the release build, as `cargo build --release` leaves it."""

    name = "syncline"

    def __init__(self, options):
        super().__init__(options)
        self.program = options.syncline or newest(
            os.path.join(target, "release", "syncline")
            for target in (os.environ.get("CARGO_TARGET_DIR"), os.path.join(ROOT, "target"))
            if target
        )

    def missing(self):
        if self.program is None:
            return "no release build in target/: cargo build --release, or --syncline PROGRAM"
        if shutil.which(self.program) is None:
            return f"{self.program} is no program"
        return None

    def command(self, request):
        environment = clean_environment()
        transport = "auto" if request.transport == "shm" else request.transport
        sizes = ["-b", str(request.bytes), "-e", str(request.bytes)]
        return [
            self.program, "perf", request.collective, "-n", str(request.ranks), *sizes,
            "-d", "f32", "--budget-ms", str(request.budget_ms), "-w", str(request.warmup),
            "--transport", transport, "--json", self.report(request),
        ], environment

    def row(self, request, outcome):
        try:
            with open(self.report(request), encoding="utf-8") as report:
                rows = json.load(report)["rows"]
        except (OSError, ValueError, KeyError) as error:
            raise Unusable(f"its report cannot be read: {error!r}") from error
        if len(rows) != 1:
            raise Unusable(f"reported {len(rows)} rows instead of one")
        built = time.localtime(os.path.getmtime(shutil.which(self.program)))
        version = f"{self.program}, built {time.strftime('%Y-%m-%d %H:%M:%S', built)}"
        return {**rows[0], "version": version}

    def report(self, request):
        return os.path.join(request.scratch, "syncline.json")


LIBRARIES = {
    library.name: library
    for library in (Syncline, OpenMpi5, OpenMpi4, IntelMpi, Mpich5, Gloo)
}


def newest(paths):
    """The file changed last, or None."""
    return max((path for path in paths if os.path.isfile(path)), key=os.path.getmtime, default=None)


def build(source, program, compiler):
    """Compiles one file of this folder unless `program` is newer. Raises Unusable."""
    source = os.path.join(HERE, source)
    if os.path.exists(program) and os.path.getmtime(program) > os.path.getmtime(source):
        return
    os.makedirs(os.path.dirname(program), exist_ok=True)
    installer([compiler, "-O2", "-o", program, source, "-lm"])


def install_package(prefix, package):
    """A virtual environment with one package, by the interpreter's own installer."""
    if not os.path.exists(os.path.join(prefix, "bin", "python")):
        installer([sys.executable, "-m", "venv", prefix])
    installer([os.path.join(prefix, "bin", "python"), "-m", "pip", "install", "-q", package])


def installer(argv):
    """Runs an installer or compiler. Raises Unusable with what it said."""
    try:
        ended = subprocess.run(
            argv, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=INSTALL_TIMEOUT_S, check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"{argv[0]}: {error}") from error
    if ended.returncode != 0:
        said = (ended.stderr.strip() or ended.stdout.strip() or "nothing said").splitlines()
        raise Unusable(f"{' '.join(argv[:4])} ...: exit code {ended.returncode}: {said[-1]}")
