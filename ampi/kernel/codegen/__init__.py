"""Code generation: single assignment form -> Python source."""
