"""Derivatives of functions: grad and vjp, jvp, second order, Jacobians and Hessians, custom rules."""
