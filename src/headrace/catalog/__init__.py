"""The durable catalog: the one place whose atomic writes decide what has happened."""
