"""What all rooms share: modules and their hooks, optional imports, close names, atomic files."""
