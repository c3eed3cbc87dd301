"""CUDA kernels on the processor: the code of one thread inside loops over blocks and threads.

``launch`` takes ``kernel[grid, block](...)``, ``lowering`` makes an ordinary kernel for it: ``guards`` (early returns),
``uniformity`` (what all threads of a block agree on), ``fission`` (barriers split the loop over threads), ``flat``
(kernels without barriers are loops over the grid), ``loops`` (loops over threads and blocks).

``emission`` writes the lowered kernel, its adjoint and its tangent as source for ``numba.cuda``: ``known_loops``
(strides of trees are constants), ``spaces`` (registers, shared memory, buffers; who owns an element), ``together``
(barriers, and sums of threads), ``device_source`` (statements), ``dialect`` (functions).
"""
