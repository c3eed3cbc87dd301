"""IR -> IR: every name stands for one array, and there is nothing but loops over elements."""
