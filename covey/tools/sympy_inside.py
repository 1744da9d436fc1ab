"""Import what SymPy imports only when it is needed; a locked child opens no file, so what is not here already cannot come later.

For the process that children are forked from. Other versions of SymPy have not all of the modules.
"""

import contextlib
import importlib

LATE = """
    abc assumptions.facts assumptions.handlers.calculus assumptions.handlers.common assumptions.handlers.matrices
    assumptions.handlers.ntheory assumptions.handlers.order assumptions.handlers.sets assumptions.lra_satask
    assumptions.predicates.matrices assumptions.predicates.sets assumptions.satask assumptions.wrapper codegen.ast
    combinatorics combinatorics.galois concrete.delta discrete.recurrences geometry integrals.heurisch
    integrals.manualintegrate integrals.risch logic.algorithms.dpll logic.algorithms.dpll2 logic.algorithms.lra_theory
    matrices.expressions.applyfunc physics.units polys.dispersion polys.distributedmodules
    polys.domains.old_fractionfield polys.domains.old_polynomialring polys.domains.quotientring
    polys.numberfields.resolvent_lookup printing.c sets.handlers.add sets.handlers.functions sets.handlers.issubset
    sets.handlers.mul sets.handlers.power sets.setexpr stats tensor.array.array_derivatives tensor.array.expressions
    tensor.tensor vector
"""
"""Modules below `sympy`."""

for name in ("sympy", *(f"sympy.{late}" for late in LATE.split())):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
