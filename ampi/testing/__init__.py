"""Checks of the derivatives of your programs, on any communicator: the dot-product tests and the Taylor test.

All are collective and compare numbers summed over all ranks, so all ranks get the same result.
"""

from .identities import DotTest, JvpTest, SymmetryTest, dot_test, jvp_test, symmetry_test
from .taylor import TaylorTest, taylor_test

__all__ = [
    "DotTest",
    "JvpTest",
    "SymmetryTest",
    "TaylorTest",
    "dot_test",
    "jvp_test",
    "symmetry_test",
    "taylor_test",
]

for _name in __all__:
    globals()[_name].__module__ = __name__
