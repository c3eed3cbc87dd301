"""IR -> IR: adjoints whose loops compilers vectorise, and that run on threads."""
