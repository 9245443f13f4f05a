"""Records for the report's tests, built in Python."""
