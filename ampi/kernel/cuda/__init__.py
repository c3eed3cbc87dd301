"""CUDA kernels on the processor: the code of one thread inside loops over blocks and threads.

``launch`` handles ``kernel[grid, block](...)``, and ``lowering`` makes an ordinary kernel from it: ``guards`` (early
returns), ``uniformity`` (values that are equal in all threads of a block), ``fission`` (barriers split the loop over
threads), ``flat`` (kernels without barriers are loops over the grid), ``loops`` (loops over threads and blocks).

``emission`` writes the lowered kernel, its adjoint and its tangent as source for ``numba.cuda``: ``known_loops``
(strides of tree reductions become constants), ``spaces`` (registers, shared memory, buffers; which thread owns an
element), ``together`` (barriers, and sums over threads), ``device_source`` (statements), ``dialect`` (functions).
"""
