"""The part of Sphinx that is ours: the reference, results, papers and drawings; `extension` tells Sphinx of them."""
