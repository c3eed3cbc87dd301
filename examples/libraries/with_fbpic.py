import numpy as np
from scipy.constants import c, e, m_e
from fbpic.main import Simulation
from fbpic.lpa_utils.laser import add_laser

n_e = 4.0e24
sim = Simulation(
    Nz=40,
    zmax=10.0e-6,
    Nr=16,
    rmax=10.0e-6,
    Nm=2,
    dt=10.0e-6 / 40 / c,
    n_e=n_e,
    p_zmin=-5.0e-6,
    p_zmax=5.0e-6,
    p_rmin=0.0,
    p_rmax=8.0e-6,
    p_nz=1,
    p_nr=2,
    p_nt=4,
    zmin=-10.0e-6,
    n_order=-1,
    boundaries={"z": "periodic", "r": "reflective"},
    verbose_level=0,
)
field = 0.5
sim.fld.interp[1].Er[:] = (
    field * 1e10 * np.exp(-((np.arange(40)[:, None] - 20) ** 2) / 50.0 - np.arange(16)[None] ** 2 / 30.0)
)
sim.fld.interp2spect("E")
sim.step(3, show_progress=False)
p = sim.ptcl[0]
energy = np.sum(p.w * (np.sqrt(1 + p.ux**2 + p.uy**2 + p.uz**2) - 1)) / np.sum(p.w)
