"""The state store: sorted runs on local disk, arrangements over them, and the kernels that work on both."""
