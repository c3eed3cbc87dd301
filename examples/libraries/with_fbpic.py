"""A plasma in the field of a pulse, with FBPIC's particles, fields and Numba kernels, written without ampi.

mpiexec -n 2 python -m ampi.run --also fbpic --wrt field --of energy --check with_fbpic.py
"""

import numpy as np
from fbpic.main import Simulation
from scipy.constants import c

length, nz, nr = 10.0e-6, 192, 12
simulation = Simulation(
    Nz=nz, zmax=length, Nr=nr, rmax=length, Nm=2, dt=length / nz / c, zmin=-length, n_e=4.0e24, n_order=4,
    p_zmin=-length / 4, p_zmax=length / 4, p_rmin=0.0, p_rmax=0.8 * length, p_nz=1, p_nr=2, p_nt=4,
    boundaries={"z": "periodic", "r": "reflective"}, verbose_level=0,
)  # fmt: skip
field = 0.5e10
z = np.linspace(-1.0, 1.0, simulation.fld.interp[1].Er.shape[0])
r = np.linspace(0.0, 1.0, nr)
simulation.fld.interp[1].Er[:] = field * np.exp(-5.0 * z[:, None] ** 2 - 3.0 * r**2)
simulation.fld.interp2spect("E")
simulation.step(3, show_progress=False)
electrons = simulation.ptcl[0]
energy = np.sum(electrons.ux**2 + electrons.uy**2 + electrons.uz**2)
