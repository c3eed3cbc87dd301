"""Python source -> typed IR."""
