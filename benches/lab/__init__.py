"""Parts of the fault laboratory (`benches/laboratory.py`), also used by the soak.

`run` starts one real run under the console and reads what it says; `cases` is the matrix; `outside` breaks things from outside of the program;
`bed` makes hosts with a network between them; `script.py` is a torchrun-style program that knows nothing of rankdeck.
"""
