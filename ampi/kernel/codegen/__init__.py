"""Code generation: Python source from programs in single assignment form."""
