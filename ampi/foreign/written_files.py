"""Files written by h5py and `scipy.io`: a warning that values read back are constants."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from ..arrays.activity import plain_of
from ..arrays.losses import warn_filed, would_be_lost
from ..base.structures import leaves, mapped
from ..interception.hooks import Hook, hook, when_imported
from ..tape import Tape

WRITERS = {
    "h5py._hl.attrs": "AttributeManager.__setitem__ AttributeManager.create AttributeManager.modify",
    "h5py._hl.dataset": "Dataset.__setitem__ Dataset.write_direct",
    "h5py._hl.group": "Group.__setitem__ Group.create_dataset Group.require_dataset",
    "scipy.io": "mmwrite savemat",
    "scipy.io.wavfile": "write",
}
_BETWEEN = ("h5py", "scipy", "contextlib", "functools", "ampi.interception.hooks", __name__)


def _write(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    active = next((x for x in leaves((arguments, keywords)) if would_be_lost(x)), None)
    if active is not None:
        writer = _calling_frame()
        if writer is not None and writer.f_globals.get("__name__", "").partition(".")[0] != "ampi":
            place = f"{writer.f_code.co_filename}:{writer.f_lineno}"
            warn_filed(f"a file written by {found.name} of", active, place)
        arguments, keywords = mapped(plain_of, arguments), mapped(plain_of, keywords)
    return found.original(*arguments, **keywords)


def _calling_frame() -> Any:
    """The frame of the program that calls the writing function."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in _BETWEEN and name.partition(".")[0] not in _BETWEEN:
            return frame
        frame = frame.f_back
    return None


def _watch(module: str) -> None:
    for path in WRITERS[module].split():
        function = functools.reduce(getattr, path.split("."), sys.modules[module])
        hook(inspect.unwrap(function), _write, "h5py" if module.startswith("h5py.") else f"{module}.{path}")


for _module in WRITERS:
    when_imported(_module, functools.partial(_watch, _module))
