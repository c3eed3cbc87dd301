"""Everything ampi raises or warns about.

AmpiError
├── ActivityError        an active value would leave tracked memory, or enter an operation without a rule
├── KernelError          a kernel uses what the differentiator does not know
├── ProgramError         what a program is to be differentiated for is not in it, or is no number
├── TapeError            a tape is used out of order (gradient of what it never saw, closed, nested)
└── CommunicationError   ranks disagree about what was said (activity, counts, a missing partner), or one stopped
"""


class AmpiError(Exception):
    """Base of all errors raised by ampi."""


class ActivityError(AmpiError):
    """An active value would be lost: it enters memory that is not tracked, or an operation that has no derivative.

    Not a TypeError: NumPy catches those in places and goes on with a plain copy.
    """


class KernelError(AmpiError):
    """A kernel cannot be compiled or differentiated; the message has file, line, source text and what to write."""


class ProgramError(AmpiError):
    """A variable that was named on the command line (or to `ampi.trace`) is not there, or cannot be differentiated."""


class TapeError(AmpiError, RuntimeError):
    """A tape is used in a way that has no meaning."""


class CommunicationError(AmpiError, RuntimeError):
    """Ranks disagree about a message or a collective, or a partner made no progress in time."""


class ActivityWarning(UserWarning):
    """A derivative is dropped where the program may have meant it; issued once per source line."""


class CacheWarning(UserWarning):
    """Compiled kernels cannot be kept or loaded as they should be, and are compiled once more."""


class PerformanceWarning(UserWarning):
    """Something takes much more time or memory than it need; issued once per source line."""


def no_rule(function: object, why: str = "") -> ActivityError:
    """The error for a NumPy function that has no derivative rule (for the arguments that ``why`` describes)."""
    module = getattr(function, "__module__", None) or "numpy"
    name = f"{module}.{getattr(function, '__name__', function)}"
    return ActivityError(
        f"{name} has no derivative rule{why} and was given an active array; write it with functions that have one, "
        "wrap it with ampi.custom_vjp, or pass ampi.value(x) if its result is a constant"
    )
