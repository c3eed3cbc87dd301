"""The adjoint of statements on single elements (`ampi.tape.elements`), compiled."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ampi.kernel.runtime import cache
from ampi.tape import elements, flows

_READ, _STORE, _CLEAR, _SCALE, _SUM, _ADD = (
    elements.READ,
    elements.STORE,
    elements.CLEAR,
    elements.SCALE,
    elements.SUM,
    elements.ADD,
)
_SINGLE, _PLACE = elements.SINGLE, elements.PLACE
_FLOW, _WORDS, _STEP, _COUNT = elements.FLOW, flows.WORDS, flows.STEP, flows.COUNT
_OVERWRITES, _SPREAD, _MAKES, _FORM = flows.OVERWRITES, flows.SPREAD, flows.MAKES, flows.FORM
_WEIGHTED, _NEGATIVE, _MOST, _VARIABLES = flows.WEIGHTED, flows.NEGATIVE, flows.MOST, flows.VARIABLES


@functools.cache
def _compiled() -> Any:
    flow = _FLOW, _WORDS, _STEP, _COUNT, _OVERWRITES, _SPREAD, _MAKES, _FORM, _WEIGHTED, _NEGATIVE, _MOST, _VARIABLES
    key = cache.key(_READ, _STORE, _CLEAR, _SCALE, _SUM, _ADD, _SINGLE, _PLACE, *flow)
    return cache.compiled(_sweep, f"elements_{key}", {"error_model": "numpy"})


def sweep(integers: np.ndarray, reals: np.ndarray, addresses: np.ndarray, adjoints: np.ndarray, last: int) -> None:
    """Compiled `ampi.tape.elements.sweep_in_python`, on the addresses of shadows (0 for shadows that are zero)."""
    _compiled()(integers, reals, addresses, adjoints, last)


def _sweep(integers, reals, addresses, adjoints, variable):
    k, r = len(integers), len(reals)
    few = np.empty(_MOST)
    own = adjoints.ctypes.data
    while k > 0:
        code = integers[k - 1]
        kind = code & 7
        if kind == _STORE or kind == _CLEAR:
            base = addresses[code // _PLACE]
            if base != 0:
                at = base + integers[k - 2]
                if kind == _STORE:
                    adjoints[integers[k - 3]] += _load(at, code & _SINGLE)
                _store(at, code & _SINGLE, 0.0)
            k -= 3 if kind == _STORE else 2
            continue
        if kind == _FLOW:
            count, form = code // _COUNT, code & _FORM
            source, where, target, to = integers[k - 5], integers[k - 4], integers[k - 3], integers[k - 2]
            k -= _WORDS
            weighted = code & _WEIGHTED
            if weighted:
                r -= count
            any_flows = True
            if form >= _MAKES:
                if form == _MAKES:
                    variable -= 1
                    target = variable
                g = adjoints[target]
                if form == _MAKES:
                    adjoints[target] = 0.0
                any_flows = g != 0.0
                for n in range(count):
                    few[n] = g
            else:
                makes = to % _STEP == _VARIABLES
                base = own if makes else addresses[(to % _STEP) // _PLACE]
                any_flows = base != 0
                step = 8 * (to // _STEP)
                if any_flows:
                    for n in range(count):
                        few[n] = _load(base + target + n * step, 0)
                    if code & _OVERWRITES:
                        for n in range(count):
                            _store(base + target + n * step, 0, 0.0)
                        if makes:
                            variable -= count
            if not any_flows:
                continue
            if weighted and code & _NEGATIVE:
                a, b, p, q = few[0], few[1], reals[r], reals[r + 1]
                if (a != 0.0 or b != 0.0) and (p != 0.0 or q != 0.0):
                    few[0] = a * p - b * -q
                    few[1] = a * -q + b * p
                else:
                    few[0] = few[1] = 0.0
            elif weighted:
                for n in range(count):
                    few[n] = few[n] * reals[r + n] if few[n] != 0.0 and reals[r + n] != 0.0 else 0.0
            elif code & _NEGATIVE:
                for n in range(count):
                    few[n] = -few[n]
            if form == _SPREAD:
                total = 0.0
                for n in range(count):
                    total += few[n]
                adjoints[source] += total
            else:
                base = (own if where % _STEP == _VARIABLES else addresses[(where % _STEP) // _PLACE]) + source
                step = 8 * (where // _STEP)
                for n in range(count):
                    _store(base + n * step, 0, _load(base + n * step, 0) + few[n])
            continue
        variable -= 1
        g = adjoints[variable]
        adjoints[variable] = 0.0
        if kind == _READ:
            if g != 0.0:
                at = addresses[code // _PLACE] + integers[k - 2]
                _store(at, code & _SINGLE, _load(at, code & _SINGLE) + g)
            k -= 2
        elif kind == _SCALE:
            r -= 1
            if g != 0.0 and reals[r] != 0.0:
                adjoints[integers[k - 2]] += g * reals[r]
            k -= 2
        else:
            p = 1.0
            q = 1.0 if kind == _ADD else -1.0
            if kind == _SUM:
                r -= 2
                p = reals[r]
                q = reals[r + 1]
            if g != 0.0 and p != 0.0:
                adjoints[integers[k - 3]] += g * p
            if g != 0.0 and q != 0.0:
                adjoints[integers[k - 2]] += g * q
            k -= 3


def _pointers(builder: Any, address: Any) -> tuple[Any, Any]:
    single, double = llvm.FloatType(), llvm.DoubleType()
    return builder.inttoptr(address, single.as_pointer()), builder.inttoptr(address, double.as_pointer())


@intrinsic
def _load(typing: Any, address: Any, single: Any) -> Any:
    """The number at an address, in single precision if ``single`` is not zero."""
    signature = types.float64(types.intp, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, single = arguments
        short, long = _pointers(builder, address)
        result = cgutils.alloca_once(builder, llvm.DoubleType())
        with builder.if_else(builder.icmp_signed("!=", single, llvm.Constant(single.type, 0))) as (then, otherwise):
            with then:
                builder.store(builder.fpext(builder.load(short), llvm.DoubleType()), result)
            with otherwise:
                builder.store(builder.load(long), result)
        return builder.load(result)

    return signature, generate


@intrinsic
def _store(typing: Any, address: Any, single: Any, value: Any) -> Any:
    """Store a number at an address, in single precision if ``single`` is not zero."""
    signature = types.void(types.intp, types.int64, types.float64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, single, value = arguments
        short, long = _pointers(builder, address)
        with builder.if_else(builder.icmp_signed("!=", single, llvm.Constant(single.type, 0))) as (then, otherwise):
            with then:
                builder.store(builder.fptrunc(value, llvm.FloatType()), short)
            with otherwise:
                builder.store(value, long)
        return context.get_dummy_value()

    return signature, generate
