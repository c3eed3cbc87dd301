"""The kernel -> its plain adjoint, tangent, or split reversal."""
