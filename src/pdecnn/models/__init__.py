"""The model zoo, registered in timm: one family per file."""
