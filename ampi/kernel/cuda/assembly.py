"""Registers and spills of CUDA sources, without a GPU: numba-cuda compiles them to PTX, and ptxas assembles that."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from typing import Any

ARCHITECTURES = ((8, 0), (9, 0))


@functools.cache
def ptxas() -> str | None:
    """Return the path of ptxas: of the package nvidia-cuda-nvcc, or of the system."""
    for folder in sys.path:
        for found in pathlib.Path(folder).glob("nvidia/*/bin/ptxas"):
            return str(found)
    return shutil.which("ptxas")


def missing() -> str:
    """Return the reason why nothing can be assembled; empty if it can."""
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed: pip install ampi[cuda]"
    return "" if ptxas() else "ptxas is not installed: pip install nvidia-cuda-nvcc-cu12"


def resources(made: Any, architectures: tuple[tuple[int, int], ...] = ARCHITECTURES) -> dict[str, dict[str, list[int]]]:
    """Return registers and bytes of spills of the kernels of an `Emitted` program, for each architecture."""
    from ampi.kernel.gpu import cuda

    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(made.text.replace("@cuda.jit\n", ""), f"<{made.launch}>", "exec"), space)
    found: dict[str, dict[str, list[int]]] = {}
    for kernel, signature in made.kernels.items():
        for cc in architectures:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ptx, _ = cuda.compile_ptx(space[kernel], signature, device=False, cc=cc)
            found.setdefault(kernel, {})[f"sm_{cc[0]}{cc[1]}"] = assembled(ptx, cc)
    return found


def assembled(ptx: str, cc: tuple[int, int]) -> list[int]:
    """Return registers, and bytes of spills, of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [str(ptxas()), "-v", f"-arch=sm_{cc[0]}{cc[1]}", str(source), "-o", str(source.with_suffix(".cubin"))]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"ptxas failed:\n{run.stderr}")
    registers = max(map(int, re.findall(r"Used (\d+) registers", run.stderr)))
    return [registers, max(map(int, re.findall(r"(\d+) bytes spill stores", run.stderr)), default=0)]


def shown(made: Any) -> dict[str, str]:
    """Return registers and spills of the kernels of a program in words, or why they are not known."""
    reason = missing()
    if reason:
        return dict.fromkeys(made.kernels, f"registers not known ({reason})")
    found = resources(made, ARCHITECTURES[:1])
    words: dict[str, str] = {}
    for kernel, numbers in found.items():
        registers, spilled = numbers["sm_80"]
        words[kernel] = f"{registers} registers, {spilled} bytes spilled (sm_80)"
    return words
