"""Types and operations of derivatives in several directions at once (vector mode), in the IR."""

from ampi.kernel.runtime.lanes import Lanes

LINEAR = frozenset(("add", "sub", "neg", "pos", "mul", "truediv", "select", "cast", "fused"))
"""The operations on derivatives."""
MASKS = frozenset(("ne", "eq", "and", "or", "not"))
"""The operations that find the directions in which derivatives are zero, or not."""

__all__ = ["LINEAR", "MASKS", "Lanes"]
