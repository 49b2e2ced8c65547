"""Run micro benchmarks by name: ``python -m bench.micro [NAME ...]``."""

from __future__ import annotations

import sys

from bench.micro import inner, kernels, pairs, parser, reads

BENCHMARKS = {
    "kernels": kernels,
    "inner": inner,
    "pairs": pairs,
    "parser": parser,
    "reads": reads,
}


def main(names: list[str]) -> int:
    """Print the tables of the benchmarks named, of all without names."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"no benchmark {min(unknown)!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        for part in BENCHMARKS[name].tables():
            print(part, end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
