"""Runs the benchmarks, each beside its competitors: `python -m tests.benchmarks [NAME …]`.

A benchmark is a module with `ABOUT`, one sentence, and `run(quick)`, which
prints its tables and returns the targets that were missed.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

# Add a module here to make it part of `make bench`.
BENCHMARKS = {
    "checkpoints": "tests.benchmarks.checkpoint_transfer",
    "importing": "tests.benchmarks.importing",
    "resuming": "tests.benchmarks.resuming",
    "training": "tests.benchmarks.training_beside_upload",
    "watching": "tests.benchmarks.watching",
}


def main() -> int:
    """Run the named benchmarks, or all; the exit status tells whether every target was reached."""
    parser = argparse.ArgumentParser("tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="small data, one repetition: shows that it runs")
    args = parser.parse_args()
    missed: list[str] = []
    for name in args.names or BENCHMARKS:
        module = import_module(BENCHMARKS[name])
        print(f"\n== {name}: {module.ABOUT}", flush=True)
        missed += module.run(quick=args.quick)
    for target in missed:
        print(f"MISSED {target}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
