"""Differentiation of kernels: the plain adjoint, the tangent, and the split reversal."""
