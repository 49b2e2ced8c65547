"""How runs begin and end: a farthest pair of rows, and weights that are settled on their rows."""

from contextlib import ExitStack

import numpy as np
import pytest

from ooc_fw import TrainOptions, make_kernel
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.run import Run
from tests.support.reference import SmallProblem, make_problem
from tests.support.solving import train_in_session


def unequal(kernel, C, n_rows, **how):
    """Rows of the positive class have five times the penalty of the others."""
    plain = make_problem(kernel, n_rows=n_rows, **how)
    return SmallProblem(plain.kernel, plain.X, plain.y, np.where(plain.y > 0, 5 * C, C))


def train(problem, **options):
    options = {"lmo": "sampled", "certify": False, "C": 1.0} | options
    return train_in_session(problem, penalties=problem.C, **options)


@pytest.mark.parametrize(
    ("C", "n_rows", "max_iter", "status"),
    [(1.0, 800, 2, "max_iter"), (100.0, 1200, 2, "max_iter"), (10.0, 1000, None, "stopped")],
)
def test_a_run_that_stops_early_leaves_weights_that_are_settled(C, n_rows, max_iter, status):
    """They are nearly optimal on their own rows."""
    problem = unequal(make_kernel("rbf", gamma=5.0), C, n_rows, overlap=3)
    asked = [] if max_iter else [lambda state: state.iteration < 2]
    solution = train(problem, callbacks=asked, max_iter=max_iter)
    assert solution.status == status
    truth = problem.truth(solution.rows, solution.alpha)
    assert solution.rho == pytest.approx(float(truth.rho), rel=1e-9)
    assert 1 - truth.gradient[solution.rows].min() / truth.rho <= 0.02


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_a_run_may_begin_with_a_farthest_pair(kernel):
    """Distances are those in feature space, with labels and penalties."""
    problem = unequal(make_kernel(kernel, gamma=1.0), 1.0, n_rows=90)
    solution = train(problem, start="farthest", method="fw", max_iter=0)
    Q = problem.dual_matrix
    apart = np.diag(Q)[:, None] + np.diag(Q) - 2 * Q
    drawn = int(np.random.default_rng(0).integers(90))
    first = int(apart[drawn].argmax())
    assert sorted(solution.rows) == sorted([first, int(apart[first].argmax())])


class Stepped(Run):
    """A run whose steps the test takes."""

    def is_over(self):
        return False

    def update(self):
        return self.progress

    def weights_so_far(self):
        return self.weights


def test_a_certificate_holds_after_vertices_have_left():
    """A run that walks on all rows drops those without weight at its end."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=60)
    binary = BinaryProblem(problem.source(), problem.y, problem.kernel)
    plan = plan_exact(binary, TrainOptions(C=problem.C, method="swap2", lmo="full"), Session())
    first = np.arange(20)
    with ExitStack() as stack:
        run = Stepped(binary, plan, Session(), stack)
        run.add_vertices(first)
        run.active.set_weights(np.full(20, 1 / 20))
        run.renew()
        run.certify(1e-3)
        run.add_vertices(np.arange(20, 60))
        run.active.set_weights(np.where(run.active.ids < 40, 0.0, 1 / 20))
        run.finish_early(0.0)
        run.renew()
        certificate = run.certify(1e-3)
        support = run.active.support
        truth = problem.truth(run.active.ids[support], run.active.alpha[support])
    assert truth.gap <= certificate.certified_gap <= truth.gap * (1 + 1e-6) + 1e-6
