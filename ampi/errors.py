"""Everything ampi raises or warns about.

AmpiError
├── ActivityError        an active value would leave tracked memory, or enter an operation without a rule
├── KernelError          a kernel uses what the differentiator does not know
├── ProgramError         what a program is to be differentiated for is not in it, or is no number
├── TapeError            a tape is used out of order (gradient of what it never saw, closed, nested)
└── CommunicationError   ranks disagree about what was said (activity, counts, a missing partner), or one stopped
"""


class AmpiError(Exception):
    """Base of all errors raised by ampi.

    Examples
    --------
    >>> try:
    ...     ampi.grad(lambda x: numpy.spacing(x)[0])(numpy.ones(2))
    ... except ampi.AmpiError as error:
    ...     print(type(error).__name__)
    ActivityError
    """


class ActivityError(AmpiError):
    """An active value would be lost: it enters memory that is not tracked, or an operation that has no derivative.

    Not a TypeError: NumPy catches those in places and goes on with a plain copy.

    Examples
    --------
    >>> ampi.grad(lambda x: numpy.spacing(x)[0])(numpy.ones(2))
    Traceback (most recent call last):
    ampi.errors.ActivityError: ...numpy.spacing has no derivative rule and was given an active array; ...
    """


class KernelError(AmpiError):
    """A kernel cannot be compiled or differentiated; the message has file, line, source text and what to write.

    Examples
    --------
    >>> @ampi.kernel
    ... def f(x):
    ...     return open(x)
    >>> f(numpy.ones(2))
    Traceback (most recent call last):
    ampi.errors.KernelError: ...
    """


class ProgramError(AmpiError):
    """A variable that was named on the command line (or to `ampi.trace`) is not there, or cannot be differentiated.

    Examples
    --------
    >>> with open("program.py", "w") as file:
    ...     _ = file.write("x = 2.0\\nenergy = x * x\\n")
    >>> ampi.trace("program.py", wrt=("y",), of="energy")
    Traceback (most recent call last):
    ampi.errors.ProgramError: ...
    """


class TapeError(AmpiError, RuntimeError):
    """A tape is used in a way that has no meaning.

    Examples
    --------
    >>> tape = ampi.Tape()
    >>> tape.watch(numpy.ones(2))
    Traceback (most recent call last):
    ampi.errors.TapeError: tape.watch(x) must be called inside `with tape:`, on the innermost tape
    """


class CommunicationError(AmpiError, RuntimeError):
    """Ranks disagree about a message or a collective, or a partner made no progress in time.

    Examples
    --------
    >>> comm = ampi.COMM_SELF.Dup()
    >>> with ampi.Tape() as tape:
    ...     x, y = tape.watch(numpy.ones(2)), np.zeros(2)
    ...     receive = comm.Irecv(y, 0)
    ...     comm.Send(x, 0)
    >>> tape.gradient(y, x, seed=numpy.ones(2))
    Traceback (most recent call last):
    ampi.errors.CommunicationError: ...was never completed: wait for the request before computing the gradient
    >>> done = receive.Wait()
    >>> comm.Free()
    """


class ActivityWarning(UserWarning):
    """A derivative is dropped where the program may have meant it; issued once per source line.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     x_bar = ampi.grad(lambda x: np.sum(np.zeros(2)))(numpy.ones(2))
    >>> said[0].category.__name__
    'ActivityWarning'
    """


class CacheWarning(UserWarning):
    """Compiled kernels cannot be kept or loaded as they should be, and are compiled once more.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("error", ampi.CacheWarning)  # rather an error than a compilation in every run
    >>> warnings.simplefilter("default", ampi.CacheWarning)
    """


class PerformanceWarning(UserWarning):
    """Something takes much more time or memory than it need; issued once per source line.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", ampi.PerformanceWarning)  # after the program has been looked at
    >>> warnings.simplefilter("default", ampi.PerformanceWarning)
    """
