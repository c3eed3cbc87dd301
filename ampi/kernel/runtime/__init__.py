"""Support for compiled code at run time: cache, threads, special functions."""
