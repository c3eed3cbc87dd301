"""Least squares with pylops-mpi's distributed arrays and operators, written without ampi.

    mpiexec -n 2 python -m ampi.run --also pylops --also pylops_mpi --wrt model --wrt matrix --of misfit \
        --objective replicated --check with_pylops_mpi.py
"""

import numpy as np
import pylops
import pylops_mpi
from mpi4py import MPI

comm = MPI.COMM_WORLD
n = 12
rng = np.random.default_rng(comm.rank)
matrix = rng.standard_normal((n, n)) + n * np.eye(n)
model = rng.standard_normal(n)

blocks = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(matrix)])
derivative = pylops_mpi.MPIFirstDerivative((n * comm.size,), dtype=np.float64)
x = pylops_mpi.DistributedArray(global_shape=n * comm.size)
x[:] = model
data = derivative @ (blocks @ x)

start = pylops_mpi.DistributedArray(global_shape=n * comm.size)
start[:] = 0.0
found, *_ = pylops_mpi.cgls(blocks, data, x0=start, niter=4, tol=0)
misfit = (found - x).norm() + data.dot(data) / n
