"""A Global layer as one operator: in inference, in training, and its norms alone."""
