"""Differentiation: a kernel -> its plain adjoint, its tangent, or its split reversal."""
