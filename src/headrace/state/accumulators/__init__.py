"""How accumulable aggregates are kept, one class for each kind of accumulator.

accumulator.py  the interface: what a row sends, which diffs store it, what they are of rows, how they are read
counts.py       counts
sums.py         sums of integers and decimals, in limbs
limbs.py        numbers of more than 64 bits in columns of int64
doubles.py      sums of doubles, exact
extremes.py     minima and maxima
bits.py         bit_and, bit_or, bit_xor

An accumulator knows its own columns, and nothing of Spark or Catalyst; nobody else asks which one it is. By which one a
function of Catalyst's is kept is said in `plan/accumulable.py`.

Every layout is exact under retraction: adding rows and taking the same rows back leaves the very state, in any order
and any grouping. Integers and decimals are limbs of 32 bits, which carry where they are combined
(`TableSchema.carries`), so that they add without overflow however many rows there are; doubles are numbers with as many
bits as they need (`kernels.exact_sum`) beside separate counts of NaN, +Inf and -Inf. Minima and maxima accumulate only
over input that is never retracted; otherwise the values themselves are kept in order beside the sums, see
`dataflow.operators.values`.
"""

from headrace.state.accumulators.accumulator import Accumulator, Sent, WireColumn

__all__ = ["Accumulator", "Sent", "WireColumn"]
