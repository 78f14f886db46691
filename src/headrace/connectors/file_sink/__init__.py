"""Files that a sink writes: one for each epoch that has rows."""
