"""Arrays in the memory of a device: copies to and from the host, launches of CUDA kernels, and their derivatives."""
