"""CUDA kernels on the processor: loops over blocks and threads for what is written for one thread.

``launch`` takes ``kernel[grid, block](...)``, ``lowering`` makes an ordinary kernel for it: ``guards`` (early returns),
``uniformity`` (what all threads of a block agree on), ``fission`` (barriers split the loop over threads), ``flat``
(kernels without barriers are loops over the grid), ``loops`` (loops over threads and blocks).
"""
