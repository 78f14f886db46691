"""What databases tell about themselves: system relations and functions."""
