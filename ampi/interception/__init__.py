"""How calls of code outside ampi are intercepted: its functions, classes and entry points in C."""
