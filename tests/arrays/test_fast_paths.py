"""Ufuncs and assignments on their fast paths and on the general one: the same values and gradients, from any layout."""

import random

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.arrays import fast_calls, fast_writes

WAYS = {"few": (64, fast_writes.LARGEST), "many": (0, fast_writes.LARGEST), "any": (0, 0)}
SHAPES = [(4,), (70,), (1,), (3, 4), (9, 9), (5, 1), (2, 3, 4), (4, 5, 6), (0, 3)]


def drawn_view(draw):
    """Text of an array with the shape of another one and its values, perhaps in another order, in some layout."""
    return draw.choice(
        [
            "{}",
            "{}[...]",
            "{}[::-1]",
            "{}[::-1][::-1]",
            "{}.T.T",
            "np.broadcast_to({}[:1], {}.shape)",
            "np.broadcast_to({}[..., :1], {}.shape)",
            "np.swapaxes(np.swapaxes({}, 0, -1).copy(), 0, -1)",
            "{}.copy()",
            "np.asfortranarray({})",
            "wide(np, {})[..., 1:-1]",
            "wide(np, {})[..., ::-1][..., 1:-1]",
        ]
    )


def drawn_program(draw):
    """Lines of a program with arrays a, b, c of one shape."""
    lines = []
    for _ in range(draw.randrange(4, 14)):
        x, y, z = (draw.choice("abc") for _ in range(3))
        view, other = (drawn_view(draw) for _ in range(2))
        x_view, y_view = view.replace("{}", x), other.replace("{}", y)
        number = draw.choice(["0.5", "2", "np.float64(0.75)", "True", "first(np, b)", "numpy.full(a.shape, 0.25)", "p"])
        lines.append(
            draw.choice(
                [
                    f"{z} = {x_view} * {y_view}",
                    f"{z} = {x_view} + {number}",
                    f"{z} = {number} - {x_view}",
                    f"{z} = np.sin({x_view}) + {y_view} * {number}",
                    f"{z} = np.exp(-{x_view} * {x_view})",
                    f"{z} = np.maximum({x_view}, {number})",
                    f"{z} = {x_view} / (1 + {y_view} * {y_view})",
                    f"{z} = {z}.copy(); {z}[...] = {x_view}",
                    f"{z} = {z}.copy(); {z}[1:] = {x}[:-1]",
                    f"{z} = {z}.copy(); {z}[:-1] = {z}[1:]",
                    f"{z} = {z}.copy(); {z}[:1] = {z}[-1:]",
                    f"{z} = {z}.copy(); {z}[: ({z}.shape[0] + 1) // 2] = {z}[::2]",
                    f"{z} = {z}.copy(); {z}[::2] = {z}[: ({z}.shape[0] + 1) // 2]",
                    f"{z} = {z}.copy(); {z}[..., ::2] += {z}[..., : ({z}.shape[-1] + 1) // 2]",
                    f"{z} = {z}.copy(); {z}[..., 0] = {z}[..., -1] * 0.5",
                    f"{z} = {z}.copy(); {z}[..., :1] = {z}[..., -1:]",
                    f"{z} = {z}.copy(); {z} += {y_view}",
                    f"{z} = {z}.copy(); {z} -= {y_view}",
                    f"{z} = {z}.copy(); {z}[1:] += {y}[:-1]",
                    f"{z} = {z}.copy(); {z}[1:] -= {z}[:-1]",
                    f"{z} = {z}.copy(); {z} *= {number}",
                    f"{z} = {z}.copy(); q = {z} * {z}; {z}[1:] = {x}[1:]; {y} = q + {z}",
                    f"{z} = {z}.copy(); q = {z} * {z}; {z} += {x_view}; {y} = q * {z}",
                ]
            )
        )
        lines.append(f"{z} = np.tanh({z})")
    return lines


def wide(np, x):
    """The array with an element more at both ends of its last axis."""
    return np.concatenate([x[..., :1], x, x[..., -1:]], axis=-1)


def first(np, x):
    """A number that carries derivatives, if there is one."""
    return np.sum(x) * 0.125


def run(np, lines, start, dtype):
    names = {"np": np, "numpy": numpy, "wide": wide, "first": first}
    names |= {"a": start, "b": start * 0.5, "c": start + 0.25}
    names["p"] = numpy.linspace(0.5, 1, start.size).reshape(start.shape).astype(dtype)
    exec("\n".join(lines), names)
    weights = numpy.cos(numpy.arange(start.size)).reshape(start.shape)
    return np.sum((names["a"] + names["b"] * names["c"]) * weights)


@pytest.mark.parametrize(
    "seed", [*range(40), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 2000)]]
)
def test_programs_have_the_same_gradient_on_each_path(seed, monkeypatch):
    draw = random.Random(f"fast paths {seed}")
    shape = draw.choice(SHAPES)
    dtype = draw.choice([numpy.float64, numpy.float64, numpy.float32])
    lines = drawn_program(draw)
    start = numpy.random.default_rng(seed).uniform(0.2, 0.9, shape).astype(dtype)
    found = {}
    for name, (few, largest) in WAYS.items():
        monkeypatch.setattr(fast_calls, "MOST_ELEMENTS", few)
        monkeypatch.setattr(fast_writes, "LARGEST", largest)
        found[name] = ampi.value_and_grad(lambda x: run(np, lines, x, dtype))(start)
        _, dot = ampi.jvp(lambda x: run(np, lines, x, dtype), (start,), (numpy.ones_like(start),))
        tolerance = 1e-12 if dtype is numpy.float64 else 2e-4
        assert numpy.allclose(dot, numpy.sum(found[name][1]), rtol=tolerance, atol=tolerance), (name, lines)
    value, gradient = found["any"]
    for name in ("few", "many"):
        assert found[name][0] == value, lines
        tolerance = 1e-13 if dtype is numpy.float64 else 1e-5
        numpy.testing.assert_allclose(
            found[name][1], gradient, rtol=tolerance, atol=tolerance, err_msg="\n".join(lines)
        )
    if dtype is numpy.float64 and start.size and not any("maximum" in line for line in lines):
        k = draw.randrange(start.size)
        moved = start.astype(complex)
        moved.flat[k] += 1e-30j
        expected = run(numpy, lines, moved, complex).imag / 1e-30
        numpy.testing.assert_allclose(gradient.flat[k], expected, rtol=1e-10, atol=1e-12, err_msg="\n".join(lines))


@pytest.mark.parametrize("repeated", [lambda x: np.broadcast_to(x[:1], x.shape), lambda x: np.broadcast_to(x[1:2], 3)])
def test_an_element_that_an_array_repeats_gets_the_sum(repeated):
    """The repeated array has as many bytes as the memory in which its element lies."""
    gradient = ampi.grad(lambda x: np.sum(repeated(x) * np.arange(3.0)))(numpy.ones(3))
    assert sorted(gradient.tolist()) == [0, 0, 3]
