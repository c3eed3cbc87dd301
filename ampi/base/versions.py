"""Versions of Python and of the dependencies with which ampi is tested."""

from __future__ import annotations

import importlib.metadata
import platform
import re

TESTED: tuple[dict[str, str], ...] = (
    {"Python": "3.10", "numpy": "2.2.6", "scipy": "1.15.3", "numba": "0.68.1", "mpi4py": "4.1.2", "h5py": "3.16.0"},
    {"Python": "3.11", "numpy": "2.4.6", "scipy": "1.17.1", "numba": "0.68.1", "mpi4py": "4.1.2", "h5py": "3.16.0"},
    {"Python": "3.12", "numpy": "2.5.5", "scipy": "1.18.1", "numba": "0.68.1", "mpi4py": "4.1.2", "h5py": "3.16.0"},
    {"Python": "3.13", "numpy": "2.5.5", "scipy": "1.18.1", "numba": "0.68.1", "mpi4py": "4.1.2", "h5py": "3.16.0"},
)
"""One environment each, oldest first: the first has the lower bounds of ``setup.cfg``."""

PACKAGES = tuple(name for name in TESTED[0] if name != "Python")


def version(package: str) -> str:
    """Return the version of an installed package, or ``(not installed)``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def installed() -> dict[str, str]:
    """Return the versions of this environment, under the names of `TESTED`."""
    return {"Python": platform.python_version(), **{package: version(package) for package in PACKAGES}}


def untested(found: dict[str, str]) -> list[str]:
    """Return a sentence for each package that is older or newer than everything tested.

    Parameters
    ----------
    found : dict
        Versions, as `installed` returns them.
    """
    sentences = []
    for name, own in found.items():
        if not own[:1].isdigit():
            sentences.append(f"{name} is not installed")
            continue
        versions = [environment[name] for environment in TESTED]
        oldest, newest = min(versions, key=_numbers), max(versions, key=_numbers)
        if _minor(own) < _minor(oldest):
            sentences.append(f"{name} {own} is older than the oldest tested, {oldest}")
        elif _minor(own) > _minor(newest):
            sentences.append(f"{name} {own} is newer than the newest tested, {newest}")
    return sentences


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def _minor(text: str) -> tuple[int, ...]:
    """Return the numbers of a feature release: bug-fix releases are expected to behave alike."""
    return _numbers(text)[:2]
