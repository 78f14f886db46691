"""Tries random cases for as long as one likes: `python -m tests.model.fuzz --minutes 10 [--seed 1] [--query NAME]`.

Prints the first case that breaks the law as a small SQL script, shrunk, with the seed that finds it again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from model_cases import Case, cases, run_case
from model_queries import POOL
from pyspark.sql import SparkSession

_SETTINGS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


def campaign(
    spark: SparkSession, until: float, seed: int, query: str | None = None, per_round: int = 10
) -> tuple[int, int]:
    """Run rounds of cases until the clock (`time.monotonic`) passes `until`; how many rounds and cases it were.

    Raises what a broken case raises, shrunk.
    """
    rounds = count = 0
    while time.monotonic() < until:
        choice = random.Random(seed + rounds)
        name = query or (choice.choice(sorted(POOL)) if choice.random() < 0.3 else None)

        @hypothesis_seed(seed + rounds)
        @settings(_SETTINGS, max_examples=per_round)
        @given(cases(POOL[name] if name else None))
        def law(case: Case) -> None:
            nonlocal count
            count += 1
            run_case(spark, case)

        print(f"seed {seed + rounds}: {name or 'compositions'}", flush=True)
        law()
        rounds += 1
    return rounds, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--query", choices=sorted(POOL), default=None)
    options = parser.parse_args()
    from headrace.dataflow.spark import local_session

    spark = local_session()
    try:
        rounds, count = campaign(spark, time.monotonic() + 60 * options.minutes, options.seed, options.query)
        print(f"{count} cases in {rounds} rounds hold")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
