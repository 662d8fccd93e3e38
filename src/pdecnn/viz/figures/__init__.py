"""The figures of the papers and of trained nets, one file each; `pdecnn figure NAME` draws them."""
