"""Scaling studies: ``python -m ampi.scaling study.toml`` measures a program and its gradient on ranks and threads.

``study`` reads what is asked for, ``runner`` measures what is missing in an order drawn by chance, ``results`` keeps
it as lines that are only added, ``machine`` says where that was. ``python -m ampi.scaling --help`` lists the commands.
"""

from ampi.scaling.results import Results
from ampi.scaling.results import read as read_results
from ampi.scaling.runner import measure
from ampi.scaling.study import ScalingError, Study, read_study

__all__ = ["Results", "ScalingError", "Study", "measure", "read_results", "read_study"]
