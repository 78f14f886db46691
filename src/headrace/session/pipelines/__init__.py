"""Pipelines: relations defined by functions of a Python file, found, ordered and created together."""
