"""What runs inside Spark's Python workers: numpy and Arrow only, no import of the server side."""
