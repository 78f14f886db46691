"""Sources, read by offset range, and sinks, written by epoch; one connector per module."""
