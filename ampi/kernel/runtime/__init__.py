"""What compiled code needs while it runs, and where it is kept."""
