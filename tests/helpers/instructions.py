"""Numbers of instructions of Python that a function executes: unlike times, they are the same on each machine."""

import sys
import sysconfig

import pytest

IS_COUNTED = sys.version_info[:2] == (3, 13) and not sysconfig.get_config_var("Py_GIL_DISABLED")
counted = pytest.mark.skipif(not IS_COUNTED, reason="limits are those of Python 3.13")
"""Marks tests with such limits."""

_TOOL = 4  # of six; tracers and profilers take others


def instructions(function, *arguments):
    """Return the number of instructions in this thread's call of a function, without those of C code."""
    monitoring, found = sys.monitoring, [0]

    def count(code, offset):
        found[0] += 1

    monitoring.use_tool_id(_TOOL, "ampi's tests")
    try:
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, count)
        monitoring.set_events(_TOOL, monitoring.events.INSTRUCTION)
        function(*arguments)
    finally:
        monitoring.set_events(_TOOL, 0)
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(_TOOL)
    return found[0]
