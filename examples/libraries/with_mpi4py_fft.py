"""A field that is smoothed in Fourier space with mpi4py-fft's distributed transforms, written without ampi.

mpiexec -n 2 python -m ampi.run --also mpi4py_fft --wrt amplitude --of skewness --check with_mpi4py_fft.py
"""

import numpy as np
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray

comm = MPI.COMM_WORLD
transform = PFFT(comm, (12, 8, 10), axes=(0, 1, 2), dtype=float, grid=(-1,))
field = newDistArray(transform, False)
amplitude = np.random.default_rng(comm.rank).standard_normal(field.shape)
field[:] = np.exp(0.5 * amplitude)

spectrum = newDistArray(transform, True)
spectrum = transform.forward(field, spectrum)
waves = np.arange(spectrum.size).reshape(spectrum.shape)
spectrum[:] = spectrum * np.exp(-0.01 * waves)
smooth = newDistArray(transform, False)
smooth = transform.backward(spectrum, smooth)
mean = comm.allreduce(np.sum(smooth)) / (12 * 8 * 10)
skewness = np.sum((np.asarray(smooth) - mean) ** 3)
transform.destroy()
