"""How operators become stages and Spark plans: each declares it in its own module, and `build.py` finds it by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from headrace.common.lazy_dataclass import dataclass
from headrace.dataflow.chains import Chains, StageChain
from headrace.dataflow.flow import Builder, Flow, StagePlan
from headrace.plan.tree import Operator

N = TypeVar("N", bound=Operator)


@dataclass(frozen=True)
class Lowering(Generic[N]):
    """How the operators of one class are executed: by up to three functions.

    An operator that is nothing but its stage has only that. Any other has a `flow`, and where kernels may do without
    Spark a `chain`, which is asked first.
    """

    node: type[N]
    stage: Callable[[Builder, N], StagePlan] | None = None
    """The stage of its own, over the flows of its children."""
    chain: Callable[[Chains, N], StageChain | None] | None = None
    """Its output, made by stages of one worker; None where Spark has something to compute for it."""
    flow: Callable[[Builder, N], Flow] | None = None
    """Its output, of which Spark computes what is no stage."""

    def __post_init__(self) -> None:
        if self.flow is None and (self.stage is None or self.chain is not None):
            raise ValueError(f"{self.node.__name__} needs a flow for where it is no chain")

    def chained(self, chains: Chains, op: N) -> StageChain | None:
        """The stages of one worker that make its output, if there are such."""
        if self.chain is not None:
            return self.chain(chains, op)
        return chains.alone(op) if self.flow is None else None


def by_node(declared: Iterable[Lowering[Any]]) -> Mapping[type[Operator], Lowering[Any]]:
    """What was declared, by class. Raises `ValueError` for a class that is declared twice."""
    found: dict[type[Operator], Lowering[Any]] = {}
    for lowering in declared:
        if found.setdefault(lowering.node, lowering) is not lowering:
            raise ValueError(f"{lowering.node.__name__} is lowered in two ways")
    return found
