"""A description of the machine that measures, versions of software, and the git commit of a study."""

import importlib.metadata
import os
import pathlib
import platform
import socket
import subprocess
from typing import Any

PACKAGES = ("ampi", "numpy", "numba", "mpi4py")
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def describe() -> dict[str, Any]:
    """The machine: processor, cores (all, and those that this process may use), memory in bytes, hosts, system."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": memory(),
        "hosts": hosts(),
        "system": platform.platform(),
        "job": next((os.environ[name] for name in JOB_VARIABLES if name in os.environ), None),
    }


def processor() -> str:
    """The processor's name."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "cpu"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory() -> int | None:
    """Bytes of memory of this host."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def hosts() -> list[str]:
    """The hosts of this job, as the batch system names them; without one, this host."""
    if names := os.environ.get("SLURM_JOB_NODELIST"):
        return [names]
    if names := os.environ.get("LSB_HOSTS"):
        return sorted(set(names.split()))
    try:
        return sorted(set(pathlib.Path(os.environ["PBS_NODEFILE"]).read_text().split()))
    except (KeyError, OSError):
        return [socket.gethostname()]


def versions() -> dict[str, str]:
    """Python, the packages that matter, and the MPI library."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "(not installed)"
    try:
        from mpi4py import MPI

        found["mpi"] = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
    except (ImportError, RuntimeError) as error:
        found["mpi"] = f"(not known: {error})"
    return found


def commit(folder: pathlib.Path) -> dict[str, Any] | None:
    """The git commit of a folder, and whether tracked files in it were changed since; None outside of a repository."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return {"commit": head, "dirty": bool(changed)}


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
