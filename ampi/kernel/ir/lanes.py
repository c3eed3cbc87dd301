"""Types and operations of derivatives in several directions at once, as programs have them."""

from ampi.kernel.runtime.lanes import Lanes

LINEAR = frozenset(("add", "sub", "neg", "pos", "mul", "truediv", "select", "cast", "fused"))
"""What is done to derivatives."""
MASKS = frozenset(("ne", "eq", "and", "or", "not"))
"""How it is told in which directions they are zero, or not."""

__all__ = ["LINEAR", "MASKS", "Lanes"]
