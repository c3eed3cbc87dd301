"""Utilities for all packages: checks, versions, command lines, files, nested structures."""
