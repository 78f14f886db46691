"""The interactive shell: statements and backslash commands in, aligned tables out."""
