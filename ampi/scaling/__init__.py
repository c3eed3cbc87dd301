"""Scaling studies: ``python -m ampi.scaling study.toml`` measures a program and its gradient on ranks and threads.

``study`` reads the study file, ``runner`` measures missing cases in random order, ``results`` stores them in
append-only files, ``machine`` describes the machine. ``python -m ampi.scaling --help`` lists the commands.
"""

from ampi.scaling.results import Results
from ampi.scaling.results import read as read_results
from ampi.scaling.runner import measure
from ampi.scaling.study import ScalingError, Study, read_study

__all__ = ["Results", "ScalingError", "Study", "measure", "read_results", "read_study"]
