"""A small ocean with veros, and how much of its motion a stronger wind makes, written without ampi.

mpiexec -n 2 python -m ampi.run --also veros --wrt wind --of energy --check with_veros.py
"""

from mpi4py import MPI
from veros import runtime_settings, veros_routine

comm = MPI.COMM_WORLD
settings = {"diskless_mode": True, "loglevel": "error", "num_proc": {1: (1, 1), 2: (2, 1), 4: (2, 2)}[comm.size]}
for name, value in settings.items():
    if getattr(runtime_settings, name) != value:  # fixed as soon as veros has been imported: by an earlier run, here
        setattr(runtime_settings, name, value)

from veros.setups.acc_basic.acc_basic import ACCBasicSetup  # noqa: E402


class Ocean(ACCBasicSetup):
    """The channel of the model's own setups, without diagnostics."""

    @veros_routine
    def set_diagnostics(self, state):
        """Nothing is written."""


ocean = Ocean(override={"nx": 8, "ny": 8, "runlen": 3 * 4800.0, "dt_tracer": 4800.0})
ocean.setup()
variables = ocean.state.variables
wind = 1.0
with variables.unlock():
    variables.surface_taux = variables.surface_taux * wind
ocean.run()
energy = (variables.u[2:-2, 2:-2, :, variables.tau] ** 2).sum()
