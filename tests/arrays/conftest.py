"""What tests of statements on elements share."""

import pytest

from ampi.tape import element_places, elements


@pytest.fixture(params=["python", "compiled"])
def each_sweep(request, monkeypatch):
    """Sweeps of elements by Python, and by compiled code; elements are found by tables of their offsets."""
    for name in ("FEW", "MANY", "SHORT"):
        monkeypatch.setattr(elements, name, 0 if request.param == "compiled" else 1 << 40)
    monkeypatch.setattr(element_places, "FEWEST", 1)


@pytest.fixture(params=["python", "compiled"])
def swept(request, monkeypatch):
    """The gradient by Python's sweep and by the compiled one."""
    for name, value in (
        (("FEW", 0), ("MANY", 0), ("SHORT", 0)) if request.param == "compiled" else (("SHORT", 1 << 40),)
    ):
        monkeypatch.setattr(elements, name, value)
