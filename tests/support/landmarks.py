"""Landmark models of one C, and their objectives in extended precision."""

from dataclasses import replace

import numpy as np

from ooc_fw.landmarks import solve as landmarks
from ooc_fw.options import START_ROWS
from ooc_fw.solver.plan import Plan, sizes_of
from ooc_fw.system.memory import MemoryPlan
from tests.support.reference import kernel_values


def plan_of(problem, n_landmarks, options, kept_bytes=0):
    """Plan of a model with any number of landmarks, whatever memory there is.

    So many bytes are for kernel values.
    """
    work = sizes_of(problem.source, options)
    n_landmarks = min(n_landmarks, work.n_rows)
    options = replace(options, landmarks=max(n_landmarks, START_ROWS))
    memory = MemoryPlan(work, 0, None, 8, landmarks=n_landmarks, kernel_values=kept_bytes)
    return Plan(options, options, memory)


def solve_landmarks(problem, n_landmarks, options, session, warm=None, kept_bytes=0):
    """Solution of a model in the span of landmarks."""
    plan = plan_of(problem, n_landmarks, options, kept_bytes)
    return landmarks.solve_landmarks(problem, plan, session, warm)


def span_values(kernel, X, Z, jitter, bias=1):
    """k(z_j, x) + bias for all rows, and G, in extended precision."""
    Z = Z if isinstance(Z, np.ndarray) else Z.toarray()
    G = kernel_values(kernel, Z, Z) + bias + jitter * np.eye(len(Z))
    return kernel_values(kernel, X, Z) + bias, G


def solved(matrix, right):
    """Solution for a positive definite matrix, by elimination in extended precision."""
    A, x = matrix.copy(), right.copy()
    for i in range(len(A)):
        factors = A[i + 1 :, i] / A[i, i]
        A[i + 1 :] -= np.multiply.outer(factors, A[i])
        x[i + 1 :] -= factors * x[i]
    for i in range(len(A))[::-1]:
        x[i] = (x[i] - A[i, i + 1 :] @ x[i + 1 :]) / A[i, i]
    return x


def span_objectives(K, G, betas, signs, C):
    """P and D* of each classifier, by the formulas, from the values of `span_values`."""
    primal, dual = [], []
    for b, y in zip(betas, signs.T, strict=True):
        xi = np.maximum(0, 1 - y * (K @ b))
        u = K.T @ (C * xi * y)
        primal.append(b @ G @ b / 2 + (C * xi**2).sum() / 2)
        square = u @ solved(G, u) + (C * xi**2).sum()
        dual.append((C * xi).sum() ** 2 / (2 * square) if square > 0 else 0)
    return np.array(primal), np.array(dual)
