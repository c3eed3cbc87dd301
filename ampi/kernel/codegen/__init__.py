"""From single assignment form to Python source."""
