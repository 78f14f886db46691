"""Small things that depend on nothing else of headrace."""
