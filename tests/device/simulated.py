"""Random programs with arrays on a device, in Numba's simulator: ``simulated.py FIRST COUNT``."""

import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "helpers"))

import numpy as np
from device_programs import Device, Host, Program

import ampi
from ampi.device.backends import device


def main(first, count):
    warnings.simplefilter("ignore")
    assert device().is_simulated
    for seed in range(first, first + count):
        p = Program(seed)
        tolerance = 1e-10 if p.dtype is np.float64 else 2e-4
        value, bars = ampi.value_and_grad(p(Host), argnums=(0, 1))(p.x, p.s)
        found, bars_found = ampi.value_and_grad(p(Device), argnums=(0, 1))(p.x, p.s)
        slope = ampi.jvp(p(Device), (p.x, p.s), (p.x, 0.5))[1]
        pairs = [(found, value), *zip(bars_found, bars), (slope, np.sum(bars[0] * p.x) + 0.5 * bars[1])]
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * 100, err_msg=repr(p))
    print(count, "compared")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
