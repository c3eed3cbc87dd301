"""Peak memory of a piece of work, as counted by the operating system (Linux)."""

import ctypes
import gc
from pathlib import Path

STATUS = Path("/proc/self/status")


def bytes_of(field: str) -> int:
    """A field of the process's status, e.g. ``VmRSS`` or ``VmHWM``."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def settle() -> int:
    """Give free memory back to the system; the resident bytes that remain."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return bytes_of("VmRSS")


def peak(work, base: int | None = None) -> int:
    """Resident bytes that ``work()`` adds at its peak to ``base`` (by default to what there is now)."""
    present = settle()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    work()
    return bytes_of("VmHWM") - (present if base is None else base)
