"""Law-checkers for solvers and layers, ours and yours."""
