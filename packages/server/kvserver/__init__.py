"""The server: every request starts from the best state there is."""
