"""Rates of single parts, measured against what the machine can do.

``python -m bench.micro`` prints all tables, ``python -m bench.micro kernels`` one of them. Each
module has a `tables()` that yields Markdown; adding one is a module and a line in `__main__`.
"""
