"""A network as one C99 file: no malloc, no library, the same bits everywhere, K chosen when it runs.

`program` makes a graph of simple operators of a model, `groups` merges what is computed together, the functions in
`registry` write each operator as a call of the C functions in `parts/`, `arena` places all values in one block of
memory, `write` makes the text, and `build` compiles and runs it on this machine.
"""
