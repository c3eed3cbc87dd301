"""PyTorch modules in programs: values and derivatives by PyTorch, recorded as one operation."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.structures import leaves, mapped
from ..errors import ActivityError, ActivityWarning
from ..memory.storages import plain
from ..tape import recording, where_called
from ..tape.replays import is_first
from .custom import custom_vjp


def from_torch(module: Callable) -> Network:
    """Make a PyTorch module a function of `ampi.numpy`'s arrays, with PyTorch's derivatives.

    Reverse mode, forward mode, second order and vector modes go through it.  It is recorded as one operation, whatever
    it computes inside, and computed once more for its adjoint.  It runs on one rank: messages stay outside it.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A module on the CPU, or a function of tensors.  It must not overwrite its arguments.

    Returns
    -------
    callable
        Called with what the module takes: arrays of `ampi.numpy` or plain ones instead of tensors, also in tuples,
        lists and dictionaries.  Numbers of Python and other objects are constants.  It returns arrays.  Its method
        ``parameters()`` returns copies of the module's parameters that require gradients, as a dictionary of arrays.
        Passed back as the keyword argument ``parameters``, all or some of them, they are used instead of the module's
        own, and have derivatives; otherwise the module's own are constants.

    Raises
    ------
    ImportError
        PyTorch is not installed (``pip install 'ampi[torch]'``).
    ActivityError
        At a call: parameters are on another device, an argument is a tensor that requires gradients, PyTorch cannot
        combine the dtypes of arrays and parameters, or the module overwrites an argument.  At a derivative: PyTorch
        does not have it (a second derivative of some functions).

    Notes
    -----
    Tensors share the memory of contiguous and strided arrays; arrays with negative strides and those that are read-only
    are copied.  The adjoint uses the parameters, buffers, modes (``train``, ``eval``) and random numbers of the call.
    In a step of `ampi.timeloop`, a module that draws random numbers or changes its buffers is an error.

    Examples
    --------
    >>> import torch
    >>> closure = ampi.from_torch(torch.nn.Linear(2, 1, bias=False).double())
    >>> w = {"weight": numpy.array([[3.0, 4.0]])}
    >>> gradient = ampi.grad(lambda w, x: np.sum(closure(x, parameters=w) ** 2), argnums=(0, 1))
    >>> gradient(w, numpy.array([1.0, 0.5]))
    ({'weight': array([[10.,  5.]])}, array([30., 40.]))
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("ampi.from_torch needs PyTorch: pip install 'ampi[torch]'", name="torch") from error
    return Network(torch, module)


class Network:
    """A function of a program that calls a PyTorch module (`from_torch`)."""

    def __init__(self, torch: Any, module: Callable) -> None:
        self._torch = torch
        self._module = module
        self._is_module = isinstance(module, torch.nn.Module)
        self._snapshot: dict[str, Any] = {}
        self.__name__ = type(module).__name__ if self._is_module else getattr(module, "__name__", "a PyTorch function")
        self.__doc__ = module.__doc__
        self._rule = _rule(torch, self.__name__, _Call.again, _Call.first)

    def __repr__(self) -> str:
        return f"ampi.from_torch({self.__name__})"

    def parameters(self) -> dict[str, np.ndarray]:
        """Return copies of the parameters that require gradients, by name."""
        live = self._module.named_parameters() if self._is_module else ()  # type: ignore[attr-defined]
        return {name: np.array(x.detach().cpu().numpy()) for name, x in live if x.requires_grad}

    def __call__(self, *arguments: Any, parameters: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
        given = dict(parameters or {})
        self._require_known(given, [*leaves(arguments), *leaves(keywords)])
        structure = (arguments, keywords, given)
        call = _Call(self, mapped(lambda x: _ARRAY if _is_array(x) else x, structure))
        if recording() is not None:
            call.remember()
        rest = iter(self._rule(call, *filter(_is_array, leaves(structure))))
        return mapped(lambda y: next(rest) if y is _ARRAY else y, call.results)

    def tensors(self) -> dict[str, Any]:
        """Return the module's parameters and buffers by name."""
        if not self._is_module:
            return {}
        module: Any = self._module
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def kept(self, names: Iterable[str]) -> dict[str, Any]:
        """Return copies of the parameters and buffers except ``names``: those of the last call, if nothing changed."""
        live = self.tensors()
        found = {name: live[name].detach() for name in live.keys() - set(names)}
        known = self._snapshot
        same = lambda a, b: a.dtype == b.dtype and self._torch.equal(a, b)
        kept = {name: known[name] if name in known and same(known[name], x) else x.clone() for name, x in found.items()}
        self._snapshot = kept
        return kept

    def modes(self) -> list[tuple[Any, bool]]:
        """Return the modules inside this one, each with its mode: True for training."""
        return [(x, x.training) for x in self._module.modules()] if self._is_module else []  # type: ignore[attr-defined]

    def run(self, tensors: Mapping[str, Any], arguments: tuple, keywords: dict) -> Any:
        """Call the module with these tensors instead of its own."""
        if tensors:
            return self._torch.func.functional_call(self._module, dict(tensors), arguments, keywords)
        return self._module(*arguments, **keywords)

    def _require_known(self, given: dict[str, Any], arguments: Sequence[Any]) -> None:
        live = self.tensors()
        for name in given:
            if name not in live:
                listed = ", ".join(live) or "it has none"
                raise ActivityError(f"{self!r} got {name!r} among its parameters, which are: {listed}")
        for name, x in live.items():
            if x.device.type != "cpu":
                raise ActivityError(
                    f"{self!r}: {name} is on the device {x.device}, and ampi computes on the CPU: call module.cpu()"
                )
        for x in (*arguments, *given.values()):
            if isinstance(x, self._torch.Tensor) and x.requires_grad:
                raise ActivityError(
                    f"{self!r} got a tensor that requires gradients, which would get none: pass the array from which "
                    "it was made, or x.detach() if it is constant"
                )


class _Array:
    def __repr__(self) -> str:
        return "array"


_ARRAY = _Array()
"""Stands for an array in the structure of arguments and results."""


class _Call:
    """A call of a module: its constants, and the state of the module with which it was called."""

    def __init__(self, network: Network, structure: tuple) -> None:
        self.network = network
        self.structure = structure
        self.results: Any = None
        self.ran = False
        self._modes: list[tuple[Any, bool]] = []

    def remember(self) -> None:
        """Keep the state of the module for derivatives."""
        self._kept = self.network.kept(self.structure[2])
        self._modes = self.network.modes()
        self._random = self.network._torch.get_rng_state()

    def first(self, xs: Sequence[Any]) -> list[Any]:
        """Call the module as the program does: it may change its buffers, and draw random numbers."""
        network, torch = self.network, self.network._torch
        if self.ran:
            with torch.no_grad():
                return self.again(xs)
        self.ran = True
        steps = is_first() is not None
        before = ({name: x.clone() for name, x in network.tensors().items()}, torch.get_rng_state()) if steps else None
        versions = [x._version for x in xs]
        arguments, keywords, given = self._filled(xs)
        with torch.no_grad():
            found = network.run(given, arguments, keywords)
        if versions != [x._version for x in xs]:
            raise ActivityError(
                f"{where_called()}: {network!r} overwrites an argument, or a parameter that it got: copy it inside of "
                "the module, or use its functions without inplace=True"
            )
        if before is not None:
            self._require_the_same(*before)
        return self._listed(found)

    def again(self, xs: Sequence[Any]) -> list[Any]:
        """Call the module once more with the state of the first call; its present state is unchanged."""
        network, torch = self.network, self.network._torch
        arguments, keywords, given = self._filled(xs)
        tensors = {**{name: x.clone() for name, x in self._kept.items()}, **given}
        now = network.modes()
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            try:
                _set_modes(self._modes)
                return self._listed(network.run(tensors, arguments, keywords))
            finally:
                _set_modes(now)

    def _filled(self, xs: Sequence[Any]) -> tuple[tuple, dict, dict]:
        rest = iter(xs)
        return mapped(lambda x: next(rest) if x is _ARRAY else x, self.structure)

    def _listed(self, found: Any) -> list[Any]:
        is_tensor = lambda y: isinstance(y, self.network._torch.Tensor)
        self.results = mapped(lambda y: _ARRAY if is_tensor(y) else y, found)
        return [self._required(y) for y in leaves(found) if is_tensor(y)]

    def _required(self, y: Any) -> Any:
        if y.device.type != "cpu" or y.layout != self.network._torch.strided:
            kind = f"on the device {y.device}" if y.device.type != "cpu" else f"with the layout {y.layout}"
            raise ActivityError(f"{self.network!r} returned a tensor {kind}: return y.cpu() or y.to_dense()")
        return y

    def _require_the_same(self, tensors: dict[str, Any], random: Any) -> None:
        torch = self.network._torch
        now = self.network.tensors()
        changed = [name for name, x in tensors.items() if name not in now or not torch.equal(x, now[name])]
        if changed or not torch.equal(random, torch.get_rng_state()):
            what = f"changes {', '.join(changed)}" if changed else "draws random numbers"
            raise ActivityError(
                f"{where_called()}: {self.network!r} {what} in a step of ampi.timeloop, which would do so again when "
                "the step is rerun for its gradient: call module.eval() before the loop"
            )


def _set_modes(modes: Sequence[tuple[Any, bool]]) -> None:
    for module, mode in modes:
        if module.training != mode:
            module.training = mode


def _is_array(x: Any) -> bool:
    """True for arrays and NumPy's numbers; other arguments are passed on."""
    return isinstance(x, (np.ndarray, np.generic))


def _rule(torch: Any, name: str, run: Callable, first: Callable | None = None) -> custom_vjp:
    """A function of a call and arrays, which returns a tuple of arrays, with all derivatives of ``run``.

    ``run(call, tensors)`` returns a list of tensors; ``first`` does so when the program calls it.  The adjoint is a
    function of PyTorch again, of the arguments and the results' adjoints, with a rule made in the same way for second
    order.
    """

    def value(call: _Call, *xs: Any) -> tuple[Any, ...]:
        tensors = [_tensor(torch, name, x) for x in xs]
        with torch.no_grad(), _explained(torch, call, tensors):
            ys = (first or run)(call, tensors)
            shared = [*tensors, *call.network.tensors().values()]
            return tuple(_given(torch, name, y, shared if call.network._is_module else None) for y in ys)

    value.__name__ = value.__qualname__ = name
    rule = custom_vjp(value)

    def pull(count: int, call: _Call, both: Sequence[Any]) -> list[Any]:
        """The adjoints of the arguments that carry derivatives."""
        is_differentiated = torch.is_grad_enabled()
        with torch.enable_grad():
            xs = [_attached(x) if _carries(x) else x for x in both[:count]]
            varied = [x for x in xs if _carries(x)]
            ys = [y for y in run(call, xs) if _carries(y)]
            pairs = [(y, bar.to(y.dtype)) for y, bar in zip(ys, both[count:]) if y.requires_grad]
            if not pairs:
                _warn_of_cut(call)
                return [torch.zeros_like(x) for x in varied]
            connected, bars = zip(*pairs)
            found = torch.autograd.grad(connected, varied, bars, create_graph=is_differentiated, allow_unused=True)
        return [torch.zeros_like(x) if x_bar is None else x_bar for x, x_bar in zip(varied, found)]

    @functools.cache
    def adjoint(count: int) -> custom_vjp:
        return _rule(torch, f"the adjoint of {name}", functools.partial(pull, count))

    def forward(call: _Call, *xs: Any) -> tuple[Any, Any]:
        return value(call, *xs), (call, xs)

    def backward(residuals: tuple, bars: Any) -> tuple:
        call, xs = residuals
        found = iter(adjoint(len(xs))(call, *xs, *(bar for bar in bars if bar is not None)))
        return None, *(next(found) if np.asarray(x).dtype.kind in "fc" else None for x in xs)

    def tangent(arguments: tuple, dots: tuple) -> tuple:
        call, *xs = arguments
        ys = value(call, *xs)
        tensors = [_tensor(torch, name, x) for x in xs]
        moved = [_tensor(torch, name, dot) if _carries(x) else None for x, dot in zip(tensors, dots[1:])]
        with _explained(torch, call, tensors):
            y_dots = _pushed(torch, call, functools.partial(run, call), tensors, moved)
        return ys, tuple(None if y_dot is None else _given(torch, name, y_dot, None) for y_dot in y_dots)

    rule.defvjp(forward, backward)
    rule.defjvp(tangent)
    return rule


def _pushed(torch: Any, call: _Call, function: Callable, xs: Sequence[Any], dots: Sequence[Any]) -> list[Any]:
    """The tangents of a function's results, from PyTorch's forward mode, or else from two reverse sweeps."""
    try:
        ys, y_dots = _pushed_forward(torch, function, xs, dots)
    except RuntimeError:  # a function in it has no tangent
        try:
            ys, y_dots = _pushed_by_reverse(torch, function, xs, dots)
        except RuntimeError as error:
            raise ActivityError(
                f"{where_called()}: PyTorch has no tangent of {call.network!r}, which forward mode and second order "
                f"need: {str(error).splitlines()[0]}"
            ) from error
    if any(map(_carries, ys)) and all(y_dot is None for y_dot in y_dots):
        _warn_of_cut(call)
    return [
        (torch.zeros_like(y) if dot is None else dot.detach()) if _carries(y) else None for y, dot in zip(ys, y_dots)
    ]


def _pushed_forward(
    torch: Any, function: Callable, xs: Sequence[Any], dots: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results and their tangents (None: zero), by PyTorch's forward mode."""
    forward = torch.autograd.forward_ad
    _load_forward_mode(torch)
    with forward.dual_level(), torch.enable_grad():
        given = [x if dot is None else forward.make_dual(x, dot) for x, dot in zip(xs, dots)]
        unpacked = [forward.unpack_dual(y) for y in function(given)]
    return [y for y, _ in unpacked], [y_dot for _, y_dot in unpacked]


@functools.cache
def _load_forward_mode(torch: Any) -> None:
    """Have PyTorch import what its forward mode needs, without the warnings about its own code."""
    forward = torch.autograd.forward_ad
    with warnings.catch_warnings(), forward.dual_level():
        warnings.simplefilter("ignore")
        forward.make_dual(torch.zeros(1), torch.zeros(1))


def _pushed_by_reverse(
    torch: Any, function: Callable, xs: Sequence[Any], dots: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results and their tangents: those of the adjoint, which is linear in the results' adjoints, transposed."""
    with torch.enable_grad():
        given = [x if dot is None else _attached(x) for x, dot in zip(xs, dots)]
        ys = function(given)
        connected = [y for y in ys if _carries(y) and y.requires_grad]
        if not connected:
            return ys, [None] * len(ys)
        seeds = [torch.arange(y.numel()).reshape(y.shape).cos().to(y.dtype).requires_grad_() for y in connected]
        varied = [(x, dot) for x, dot in zip(given, dots) if dot is not None]
        bars = torch.autograd.grad(connected, [x for x, _ in varied], seeds, create_graph=True, allow_unused=True)
        linear = [(bar, dot) for bar, (_, dot) in zip(bars, varied) if bar is not None and bar.requires_grad]
        if not linear:
            return ys, [torch.zeros_like(y) for y in ys]
        found = torch.autograd.grad(
            [bar for bar, _ in linear], seeds, [dot for _, dot in linear], allow_unused=True, materialize_grads=True
        )
    _require_transposed(torch, linear, list(zip(seeds, found)))
    tangents = {id(y): y_dot for y, y_dot in zip(connected, found)}
    return ys, [tangents.get(id(y)) for y in ys]


def _require_transposed(torch: Any, adjoint: Sequence[tuple], tangent: Sequence[tuple]) -> None:
    """Raise if adjoint and tangent disagree: PyTorch drops contributions of adjoints that it cannot differentiate."""
    with torch.no_grad():
        sums = [sum(complex((a.conj() * b).sum()).real for a, b in pairs) for pairs in (adjoint, tangent)]
        size = sum(float((a.abs() * b.abs()).sum()) for a, b in (*adjoint, *tangent))
    precision = max(torch.finfo(a.dtype).eps for a, _ in (*adjoint, *tangent))
    if abs(sums[0] - sums[1]) > precision**0.5 * size:
        raise RuntimeError("a function in it has an adjoint that cannot be differentiated (once_differentiable)")


def _carries(x: Any) -> bool:
    return x.is_floating_point() or x.is_complex()


def _attached(x: Any) -> Any:
    """The same tensor, with gradients; one that has tangents keeps them."""
    return x if x.requires_grad else x.view_as(x).requires_grad_()


def _warn_of_cut(call: _Call) -> None:
    warnings.warn(
        f"{call.network!r} returns tensors without derivatives, which therefore are zero: it calls detach() or "
        "numpy(), runs under torch.no_grad(), or returns constants",
        ActivityWarning,
        stacklevel=2,
    )


def _tensor(torch: Any, name: str, x: Any) -> Any:
    """An array as a tensor, which shares its memory where it can."""
    array = plain(x) if isinstance(x, np.ndarray) else np.asarray(x)
    try:
        if array.flags.writeable:
            try:
                return torch.from_numpy(array)
            except ValueError:  # negative strides, another order of bytes
                pass
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise ActivityError(
            f"{where_called()}: {name}, of PyTorch, gets an array of dtype {array.dtype}, which PyTorch does not have"
        ) from error


def _given(torch: Any, name: str, y: Any, shared: Sequence[Any] | None) -> Any:
    """A tensor as an array that shares its memory; a copy if ``shared`` tensors may share it, too (None: always)."""
    y = y.detach().resolve_conj().resolve_neg()
    try:
        array = y.numpy()
    except TypeError as error:
        raise ActivityError(
            f"{where_called()}: {name}, of PyTorch, returns a tensor of dtype {y.dtype}, which NumPy does not have: "
            "return y.float()"
        ) from error
    start = y.untyped_storage().data_ptr()
    if shared is None or 0 in array.strides or any(x.untyped_storage().data_ptr() == start for x in shared):
        array = array.copy()
    return array[()]


@contextlib.contextmanager
def _explained(torch: Any, call: _Call, tensors: Sequence[Any]) -> Iterator[None]:
    """Explain an error of PyTorch if arrays and parameters have several precisions."""
    try:
        yield
    except RuntimeError as error:
        named = call.network.tensors().values()
        kinds = [{str(x.dtype).removeprefix("torch.") for x in some if _carries(x)} for some in (tensors, named)]
        if len(kinds[0] | kinds[1]) < 2:
            raise
        raise ActivityError(
            f"{where_called()}: {call.network!r} gets arrays of {' and '.join(sorted(kinds[0]))} and has parameters of "
            f"{' and '.join(sorted(kinds[1])) or 'no floating-point type'}, which PyTorch does not combine: call "
            f"module.double() or convert the arrays by astype. {str(error).splitlines()[0]}"
        ) from error
